"""Tallies on the CPU: one pass over the bits, at more than half the speed of a copy.

A chunk that fits the first-level cache passes through two loops. The first has no branches and
becomes vector instructions: for each element the place of its cell and the square of its rounded
significand. The second adds both to a table with one addition, count above and square sum below in
one 64-bit number, and asks for the next chunk from memory meanwhile, which is worth a third of the
time.

An addition waits for the last one to the same place, so neighbors go to different tables: eight
where few octaves occur, two where many do and eight would not fit the cache. Tables lie class by
class, 256 octaves each, so that neighboring octaves share lines, and start at different distances
from a page: a processor takes equal low 12 bits of an address for the same place.

Subnormal elements have octaves within one exponent field, and places after all others; the loop
that finds them runs in the chunks that have any. fp16 and bf16 are widened on the way in, exactly.

The kernels are serial and release the interpreter lock. In Numba, uint32 + uint32 is uint64, so
every operation is wrapped.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from __future__ import annotations

from typing import Any

import numpy as np

from floatscope.compiled import njit
from floatscope.rounding.kernels.numba_bits import as_bits, prefetch
from floatscope.spectrum.tally import FP32

CHUNK = 2048
LINE = 16
"""Elements that a prefetch brings, of fp32."""
CLASSES, FRACTION_BITS = FP32.num_classes, FP32.fraction_bits
NUM_CELLS, NUM_OCTAVES = FP32.num_cells, FP32.num_octaves
FIELDS, SUBNORMALS = 256, 32
"""Places a class has among normal and among subnormal elements."""
PLACES = CLASSES * (FIELDS + SUBNORMALS)
TABLE = -(-PLACES // 512) * 512 + 64
"""Distance of tables: another place in its page for each."""
NUM_TABLES = 8
PIECE = 1 << 21
"""Elements a call takes at most."""
CAPACITY = (1 << 21) - 8 * CHUNK
"""Elements between two readings of eight tables: in each fewer than 2^18 squares of at most 2^28.
An element that goes to two tables counts four times."""
COUNT_SHIFT = np.uint64(46)
WIDE = np.uint32(64 << 23)
"""Magnitude bits of so many octaves: beyond it, two tables."""

u16, u32, u64, i32, i64 = np.uint16, np.uint32, np.uint64, np.int32, np.int64
MAGNITUDE, INFINITY, FRACTION = u32(0x7FFF_FFFF), u32(0x7F80_0000), u32(0x007F_FFFF)
HIDDEN, MINUS_ZERO, MINUS_INFINITY = u32(0x0080_0000), u32(0x8000_0000), u32(0xFF80_0000)
FIRST_SUBNORMAL = u32(CLASSES * FIELDS)
LAST_SUBNORMAL = u32(0x007F_FFFF)
"""Magnitudes less 1 below it are subnormal; that of zero wraps around."""
HALF_TO_FP32, SMALLEST_HALF = u32(112 << 23), u32(24 << 23)


@njit(nogil=True, error_model="numpy")
def real_bits(number):
    """The bits of a whole number below 2^24 as fp32."""
    return as_bits(np.float32(i32(number)))


@njit(nogil=True, error_model="numpy")
def class_of(f):
    """The class of a fraction of 23 bits.

    With G = 2^24 - 2f, twice the distance to the next octave, classes are halves of the octaves of
    G, in reverse. Their edges belong now to one side, now to the other: G itself has those in the
    middle right, 2G - 1 those at powers of two.
    """
    twice = u32(u32(0x0100_0000) - u32(f + f))
    below = u32(u32(real_bits(u32(twice - u32(1))) >> u32(22)) | u32(1))
    half = min(below, u32(real_bits(twice) >> u32(22)))
    return u32(0) if f == u32(0) else u32(u32(302) - half)


def _locate(with_subnormals: bool) -> Any:
    @njit(nogil=True, error_model="numpy")
    def locate(bits, place, square):
        """Places and squares of a chunk.

        Returns the largest magnitude, the smallest non-zero one less 1, and the negative zeros.
        """
        largest, smallest, minus = u32(0), u32(0xFFFF_FFFF), u32(0)
        for i in range(bits.size):
            a = u32(bits[i] & MAGNITUDE)
            minus = u32(minus + u32(bits[i] == MINUS_ZERO))
            largest, smallest = max(largest, a), min(smallest, u32(a - u32(1)))
            f = u32(a & FRACTION)
            field = u32(a >> u32(23))
            if with_subnormals:
                is_subnormal = (a < HIDDEN) & (a != u32(0))
                b = real_bits(f)
                f = u32(b & FRACTION) if is_subnormal else f
                c = class_of(f)
                at = u32(u32(c << u32(8)) + field)
                far = u32(
                    FIRST_SUBNORMAL + u32(u32(c << u32(5)) + u32(u32(b >> u32(23)) - u32(127)))
                )
                place[i] = u16(far if is_subnormal else at)
            else:
                place[i] = u16(u32(u32(class_of(f) << u32(8)) + field))
            m = u32(u32(u32(f | HIDDEN) + u32(512)) >> u32(10))
            square[i] = u32(m * m)
        return largest, smallest, minus

    return locate


locate, locate_subnormals = _locate(False), _locate(True)


@njit(nogil=True, error_model="numpy")
def add(place, square, t0, t1, t2, t3, t4, t5, t6, t7, x, following):
    """Add a chunk to eight tables, and prefetch x from `following` on."""
    one = u64(u64(1) << COUNT_SHIFT)
    whole = place.size // LINE
    for k in range(whole):
        prefetch(x, u64(following) + u64(k) * u64(LINE))
        for half in range(2):
            i = u64(k) * u64(LINE) + u64(half) * u64(8)
            t0[place[i]] += u64(square[i]) + one
            t1[place[i + u64(1)]] += u64(square[i + u64(1)]) + one
            t2[place[i + u64(2)]] += u64(square[i + u64(2)]) + one
            t3[place[i + u64(3)]] += u64(square[i + u64(3)]) + one
            t4[place[i + u64(4)]] += u64(square[i + u64(4)]) + one
            t5[place[i + u64(5)]] += u64(square[i + u64(5)]) + one
            t6[place[i + u64(6)]] += u64(square[i + u64(6)]) + one
            t7[place[i + u64(7)]] += u64(square[i + u64(7)]) + one
    for i in range(whole * LINE, place.size):
        t0[place[u64(i)]] += u64(square[u64(i)]) + one


@njit(nogil=True, error_model="numpy")
def widen(x, bits, is_half):
    """Bits of fp32 from those of bf16, or of fp16."""
    for i in range(x.size):
        u = u32(x[i])
        if is_half:
            a = u32(u & u32(0x7FFF))
            wide = u32(u32(a << u32(13)) + HALF_TO_FP32)
            wide = u32(wide + HALF_TO_FP32) if a >= u32(0x7C00) else wide
            small = u32(real_bits(a) - SMALLEST_HALF) if a else u32(0)
            wide = small if a < u32(0x0400) else wide
            bits[i] = u32(wide | u32(u32(u & u32(0x8000)) << u32(16)))
        else:
            bits[i] = u32(u << u32(16))


@njit(nogil=True, error_model="numpy")
def specials(bits):
    """Negative infinities of a chunk, and its largest finite magnitude."""
    minus, largest = u32(0), u32(0)
    for i in range(bits.size):
        a = u32(bits[i] & MAGNITUDE)
        minus = u32(minus + u32(bits[i] == MINUS_INFINITY))
        largest = max(largest, a if a < INFINITY else u32(0))
    return minus, largest


@njit(nogil=True, error_model="numpy")
def move(table, counts, squares):
    """Add what a part of a table holds to its sums, and clear it."""
    mask = u64(u64(u64(1) << COUNT_SHIFT) - u64(1))
    for at in range(table.size):
        held = table[at]
        counts[at] += i64(held >> COUNT_SHIFT)
        squares[at] += i64(held & mask)
        table[at] = u64(0)


@njit(nogil=True, error_model="numpy")
def collect(tables, used, first, last, had_subnormals, sums):
    """Move all that the tables hold: zeros, the fields [first, last), and subnormals if any."""
    counts, squares = sums[:PLACES], sums[PLACES : 2 * PLACES]
    for table in range(used):
        held = tables[table * TABLE : table * TABLE + PLACES]
        move(held[:1], counts[:1], squares[:1])
        for c in range(CLASSES):
            low, high = c * FIELDS + first, c * FIELDS + last
            move(held[low:high], counts[low:high], squares[low:high])
        if had_subnormals:
            low = CLASSES * FIELDS
            move(held[low:], counts[low:], squares[low:])


@njit(nogil=True, error_model="numpy")
def tally_span(x, kind, start, stop, tables, sums):
    """Count the elements [start, stop) of x, at most PIECE of them.

    Args:
        x: uint32 bits of fp32, or uint16 bits of fp16 or bf16.
        kind: 0 for fp32, 1 for bf16, 2 for fp16.
        start: the first of them.
        stop: the first after them.
        tables: NUM_TABLES * TABLE numbers, zero before and after.
        sums: counts and square sums of all places, negative zeros, negative infinities.

    Returns:
        The bits of the largest finite magnitude.
    """
    T = TABLE
    t0, t1, t2, t3 = tables[0:T], tables[T : 2 * T], tables[2 * T : 3 * T], tables[3 * T : 4 * T]
    t4, t5 = tables[4 * T : 5 * T], tables[5 * T : 6 * T]
    t6, t7 = tables[6 * T : 7 * T], tables[7 * T : 8 * T]
    place, square = np.empty(CHUNK, np.uint16), np.empty(CHUNK, np.uint32)
    wide = np.empty(CHUNK if kind else 1, np.uint32)
    first, last, amax = i64(FIELDS), i64(0), u32(0)
    has_subnormals, had_subnormals, used, load = False, False, 2, 0
    for at in range(start, stop, CHUNK):
        n = min(CHUNK, stop - at)
        if kind:
            widen(x[at : at + n], wide[:n], kind == 2)
            bits = wide[:n]
        else:
            bits = x[at : at + n].view(np.uint32)
        p, s = place[:n], square[:n]
        largest = smallest = minus = u32(0)
        if not has_subnormals:
            largest, smallest, minus = locate(bits, p, s)
        if has_subnormals or smallest < LAST_SUBNORMAL:
            largest, smallest, minus = locate_subnormals(bits, p, s)
            has_subnormals = smallest < LAST_SUBNORMAL
            had_subnormals |= has_subnormals
        sums[2 * PLACES] += i64(minus)
        first = min(first, i64(u32(smallest >> u32(23))))
        last = max(last, i64(u32(largest >> u32(23))) + 1)
        if largest > smallest and u32(largest - smallest) > WIDE:
            add(p, s, t0, t1, t0, t1, t0, t1, t0, t1, x, at + CHUNK)
            load += 4 * n
        else:
            add(p, s, t0, t1, t2, t3, t4, t5, t6, t7, x, at + CHUNK)
            load, used = load + n, NUM_TABLES
        if largest >= INFINITY:
            infinities, largest = specials(bits)
            sums[2 * PLACES + 1] += i64(infinities)
        amax = max(amax, largest)
        if load > CAPACITY:
            collect(tables, used, first, last, had_subnormals, sums)
            load = 0
    collect(tables, used, first, last, had_subnormals, sums)
    return amax


@njit(nogil=True, error_model="numpy")
def arrange(sums, amax, tally):
    """Write what `tally_span` summed, class by class, to an empty tally, octave by octave."""
    counts, squares = sums[:PLACES], sums[PLACES : 2 * PLACES]
    octaves = tally[NUM_CELLS : NUM_CELLS + NUM_OCTAVES]
    others = tally[NUM_CELLS + NUM_OCTAVES :]
    for c in range(CLASSES):
        for field in range(1, FIELDS - 1):
            at = c * FIELDS + field
            if counts[at]:
                octave = field - 1 + FRACTION_BITS
                tally[octave * CLASSES + c] = counts[at]
                octaves[octave] += squares[at]
        for octave in range(FRACTION_BITS):
            at = CLASSES * FIELDS + c * SUBNORMALS + octave
            tally[octave * CLASSES + c] = counts[at]
            octaves[octave] += squares[at]
        others[4] += counts[c * FIELDS + FIELDS - 1]
    zeros, infinities = counts[0], counts[FIELDS - 1]
    others[0], others[1] = zeros - sums[2 * PLACES], sums[2 * PLACES]
    others[2], others[3] = infinities - sums[2 * PLACES + 1], sums[2 * PLACES + 1]
    others[4] -= infinities
    others[5] = amax
