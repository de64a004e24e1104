"""What a step moved, in one pass over fp32 arrays; sums are fp64, counts whole numbers.

Sums are taken in 64 columns and those added up, which makes loops of vector instructions and the
same additions in the same order on every processor. The compiler finds these loops only if their
length is a constant of the function they are in, so a last row that is short is filled with zeros.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

import numpy as np

from floatscope.compiled import njit

WEIGHTS, MASTER, REST = 0, 1, 2
"""What is carried to the next step: the weights alone, a master copy, or weights and their rest."""
C = 64

f64, i32 = np.float64, np.int32


@njit(nogil=True, error_model="numpy")
def of_weights(start, aimed, old, new, sums, counts):
    """Add intended², weights · intended; elements to move, and those whose weight did not."""
    squares, products = np.zeros(C), np.zeros(C)
    num, unmoved = np.zeros(C, np.int32), np.zeros(C, np.int32)
    for i in range(start.size // C):
        s, t = start[i * C : i * C + C], aimed[i * C : i * C + C]
        o, n = old[i * C : i * C + C], new[i * C : i * C + C]
        for j in range(C):
            intended = f64(t[j]) - f64(s[j])
            squares[j] += intended * intended
            products[j] += (f64(n[j]) - f64(o[j])) * intended
            wanted = i32(t[j] != s[j])
            num[j] += wanted
            unmoved[j] += wanted & i32(n[j] == o[j])
    sums[0] += squares.sum()
    sums[2] += products.sum()
    counts[0] += num.sum()
    counts[2] += unmoved.sum()


@njit(nogil=True, error_model="numpy")
def of_master(start, aimed, before, after, sums, counts):
    """Add carried · intended; and elements to move that did not, where a master is carried."""
    products, lost = np.zeros(C), np.zeros(C, np.int32)
    for i in range(start.size // C):
        s, t = start[i * C : i * C + C], aimed[i * C : i * C + C]
        b, a = before[i * C : i * C + C], after[i * C : i * C + C]
        for j in range(C):
            products[j] += (f64(a[j]) - f64(b[j])) * (f64(t[j]) - f64(s[j]))
            lost[j] += i32(t[j] != s[j]) & i32(a[j] == b[j])
    sums[1] += products.sum()
    counts[1] += lost.sum()


@njit(nogil=True, error_model="numpy")
def of_both(start, aimed, old, new, before, after, sums, counts):
    """The same where weights and their rests are carried."""
    products, lost = np.zeros(C), np.zeros(C, np.int32)
    for i in range(start.size // C):
        s, t = start[i * C : i * C + C], aimed[i * C : i * C + C]
        o, n = old[i * C : i * C + C], new[i * C : i * C + C]
        b, a = before[i * C : i * C + C], after[i * C : i * C + C]
        for j in range(C):
            carried = (f64(n[j]) - f64(o[j])) + (f64(a[j]) - f64(b[j]))
            products[j] += carried * (f64(t[j]) - f64(s[j]))
            lost[j] += i32(t[j] != s[j]) & i32(n[j] == o[j]) & i32(a[j] == b[j])
    sums[1] += products.sum()
    counts[1] += lost.sum()


@njit(nogil=True, error_model="numpy")
def rows(start, aimed, old, new, before, after, mode, sums, counts):
    """Whole rows of 64."""
    of_weights(start, aimed, old, new, sums, counts)
    if mode == MASTER:
        of_master(start, aimed, before, after, sums, counts)
    elif mode == REST:
        of_both(start, aimed, old, new, before, after, sums, counts)


@njit(nogil=True, error_model="numpy")
def movement(start, aimed, old, new, before, after, mode, first, last, sums, counts):
    """Add what elements first to last moved; at most 2^36 of them.

    The optimizer began with `start` and made `aimed` of it; `old` and `new` are the weights, and
    `before` and `after` the master copy or the rest, which nobody looks at for WEIGHTS. `sums`,
    zero before, receives the sums of intended², of carried · intended and of weights · intended.
    `counts` receives how many elements aim at another value than they began with and, of these,
    where what is carried is as before, and where the weight is.
    """
    found = np.zeros(3, np.int64)
    k = first + (last - first) // C * C
    rows(
        start[first:k], aimed[first:k], old[first:k], new[first:k], before[first:k],
        after[first:k], mode, sums, found,
    )  # fmt: skip
    if k < last:
        end = np.zeros((6, C), np.float32)
        for number, x in enumerate((start, aimed, old, new, before, after)):
            end[number, : last - k] = x[k:last]
        rows(end[0], end[1], end[2], end[3], end[4], end[5], mode, sums, found)
    if mode == WEIGHTS:
        sums[1], found[1] = sums[2], found[2]
    for number in range(3):
        counts[number] += found[number]
