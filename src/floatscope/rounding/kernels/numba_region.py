"""What regions share: memory by its address, pieces taken one by one, sums of several threads."""

# pyright: reportCallIssue=false

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from floatscope.compiled import njit
from floatscope.rounding.jobs import COUNTED, TAKEN
from floatscope.rounding.kernels.numba_bits import as_float, as_real
from floatscope.rounding.receipt import NUM_COUNTS

REGION = numba.void(numba.types.voidptr)
"""The signature of a region."""
NONE = np.float32(0)


@intrinsic
def pointer(typing_context: Any, address: Any, kind: Any) -> Any:
    """The address of an array of numbers of a kind."""
    result = numba.types.CPointer(kind.instance_type)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(result))

    return result(address, kind), generate


def _atomic(operation: str) -> Any:
    def atomic(typing_context: Any, job: Any, word: Any, value: Any) -> Any:
        """Change one of a job's words by a value, undivided; what it was before."""

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            words = builder.bitcast(args[0], ir.IntType(64).as_pointer())
            where = builder.gep(words, [args[1]])
            return builder.atomic_rmw(operation, where, args[2], "monotonic")

        number = numba.int64
        return number(numba.types.voidptr, number, number), generate

    return intrinsic(atomic)


add_to, raise_to = _atomic("add"), _atomic("max")


@njit(nogil=True)
def take(p):
    """The number of the next piece of the job at p."""
    return add_to(p, TAKEN, 1)


@njit(nogil=True)
def add_counts(p, counts):
    """Add one thread's counts to the job's."""
    for i in range(NUM_COUNTS):
        if counts[i]:
            add_to(p, COUNTED + i, counts[i])


@njit(nogil=True)
def flushes(one):
    """Whether this thread's processor takes subnormal numbers for zero: it has to leave the job."""
    return as_float(one) * as_real(one) == NONE
