"""What the Numba kernels share: bits of floats, stores past the caches, random bits."""

# pyright: reportCallIssue=false

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from floatscope.compiled import njit
from floatscope.rounding.random_bits import GOLDEN, MULTIPLIERS

GOLDEN64 = np.uint64(GOLDEN)
MIX1, MIX2 = np.uint64(0xBF58_476D_1CE4_E5B9), np.uint64(0x94D0_49BB_1331_11EB)
HASH1, HASH2 = np.uint32(MULTIPLIERS[0]), np.uint32(MULTIPLIERS[1])
u32, u64 = np.uint32, np.uint64


@intrinsic
def as_float(typing_context: Any, bits: Any) -> Any:
    """The float of the same width with these bits."""
    result = numba.float32 if bits == numba.uint32 else numba.float64
    llvm = ir.FloatType() if bits == numba.uint32 else ir.DoubleType()
    return result(bits), lambda context, builder, sig, args: builder.bitcast(args[0], llvm)


@intrinsic
def as_bits(typing_context: Any, value: Any) -> Any:
    """The bits of a float."""
    result = numba.uint32 if value == numba.float32 else numba.uint64
    llvm = ir.IntType(32 if value == numba.float32 else 64)
    return result(value), lambda context, builder, sig, args: builder.bitcast(args[0], llvm)


@intrinsic
def as_real(typing_context: Any, number: Any) -> Any:
    """A whole number as a float of the same width."""
    result = numba.float32 if number == numba.uint32 else numba.float64
    llvm = ir.FloatType() if number == numba.uint32 else ir.DoubleType()
    return result(number), lambda context, builder, sig, args: builder.uitofp(args[0], llvm)


@intrinsic
def truncated(typing_context: Any, value: Any) -> Any:
    """A float without its fraction."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        call = builder.module.declare_intrinsic("llvm.trunc", [args[0].type])
        return builder.call(call, args)

    return value(value), generate


def _shift(operation: str) -> Any:
    def shift(typing_context: Any, bits: Any, count: Any) -> Any:
        """`bits` shifted by a `count` of the same type, less than its width.

        Numba's own shifts are of 64 bits, which makes a vector loop over 32 bits twice as long.
        """

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return getattr(builder, operation)(args[0], args[1])

        return bits(bits, bits), generate

    return intrinsic(shift)


shift_left, shift_right = _shift("shl"), _shift("lshr")


@intrinsic
def store_past_caches(typing_context: Any, out: Any, index: Any, value: Any) -> Any:
    """out[index] = value without reading the line first.

    The alignment that is claimed here holds for whole vectors, not for each element: the loop is
    vectorized only so. Call it only where out[0] is aligned to 64 bytes.
    """

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        store = builder.store(args[2], builder.gep(data, [args[1]], inbounds=True), align=64)
        hint = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        store.set_metadata("nontemporal", hint)
        return context.get_dummy_value()

    return numba.void(out, index, value), generate


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the line of array[index] to be in the cache; it may lie beyond the array."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        where = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [where.type, number, number, number])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(call, [where, number(0), number(2), number(1)])
        return context.get_dummy_value()

    return numba.void(array, index), generate


@intrinsic
def widest_vectors(typing_context: Any) -> Any:
    """Have the compiler use vectors of 512 bits in this function, where the processor has them.

    By default it prefers 256, for the sake of processors that slow down for wider ones. The
    attribute is not among those that llvmlite knows, and so goes past its check.
    """

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return numba.void(), generate


@njit(nogil=True)
def words(key, high):
    """The two words of a key for elements whose index has this upper half: random_bits.words."""
    z = u64(key + u64(high * GOLDEN64))
    z = u64(u64(z ^ u64(z >> u64(30))) * MIX1)
    z = u64(u64(z ^ u64(z >> u64(27))) * MIX2)
    z = u64(z ^ u64(z >> u64(31)))
    return u32(z), u32(z >> u64(32))


@njit(nogil=True)
def random_word(index, first, second):
    """The random bits of an element: random_bits.random_bits."""
    h = u32(index ^ first)
    h = u32(u32(h ^ u32(h >> u32(16))) * HASH1)
    h = u32(h + second)
    h = u32(u32(h ^ u32(h >> u32(15))) * HASH2)
    return u32(h ^ u32(h >> u32(15)))


@njit(nogil=True)
def is_below(random, cut, spare):
    """Whether a random number is below a cut, both reduced to 32 - spare bits."""
    if spare:
        cut = u32(u32(cut >> spare) + u32(u32(cut >> u32(spare - u32(1))) & u32(1)))
        random = u32(random >> spare)
    return random < cut


@njit(nogil=True)
def finish(r, u, a, largest, lowest, sign, zero_sign):
    """The bits of a result from its magnitude r; whether it is beyond, became zero, lost its sign.

    What lies beyond is passed on as it came, a with the sign of u.
    """
    T = type(r)
    none = T(0)
    is_beyond = r > (lowest if u >= sign else largest)
    is_zero = r == none
    is_lost = is_zero & (u >= sign) & (zero_sign == none)
    bits = T((a if is_beyond else r) | T(u & (zero_sign if is_zero else sign)))
    return bits, T(is_beyond), T(is_zero & (a != none)), T(is_lost)
