"""The scales of blocks from their largest magnitudes, on the CPU: one vectorized loop a rule."""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import numpy as np

from floatscope.compiled import njit
from floatscope.rounding.kernels.numba_bits import as_bits, as_float

FLOOR, CEIL, EVEN, RCEIL, AMAX, AMAX_DIVIDE, NVFP4 = range(7)
"""Scale rules, in the order of `ScaleRule`."""

u32, f32 = np.uint32, np.float32
INFINITY, QUIET, NONE, ONE = u32(0x7F80_0000), u32(0x7FC0_0000), u32(0), u32(1)
FP32_MAX = f32(3.4028234663852886e38)


@njit(nogil=True, error_model="numpy")
def exponent_of(amax, rule, top_octave, fraction_bits, largest):
    """The exponent of a block's scale under the rules that give a power of two."""
    if rule == RCEIL:
        amax, top_octave = as_bits(f32(as_float(amax) * f32(f32(1.0) / largest))), 0
    is_small = amax < u32(1 << 23)  # subnormal: times 2^64, so that the bits show the octave
    bits = as_bits(f32(as_float(amax) * f32(2.0**64))) if is_small else amax
    if rule == EVEN:
        bits = u32(bits + u32(1 << (22 - fraction_bits)))
    exponent = np.int32(bits >> u32(23)) - np.int32(191 if is_small else 127) - top_octave
    if rule in (CEIL, RCEIL):
        exponent += 1 if u32(bits & u32(0x7F_FFFF)) != NONE else 0
    exponent = -127 if amax == NONE else exponent
    return min(max(exponent, -127), 127)


@njit(nogil=True, error_model="numpy")
def power_of_two(exponent):
    """2^exponent in fp32, for |exponent| up to 127."""
    return as_float(u32((exponent + 127) << 23) if exponent > -127 else u32(1 << 22))


@njit(nogil=True, error_model="numpy")
def to_scale_format(value):
    """A magnitude rounded to e4m3fn, saturating."""
    a = as_bits(value)
    if a < u32(121 << 23):  # below 2^-6
        return f32(f32(value + f32(2.0**14)) - f32(2.0**14))
    odd = u32(u32(a >> u32(20)) & ONE)
    r = as_float(u32(u32(u32(a + u32(0x7_FFFF)) + odd) & u32(0xFFF0_0000)))
    return min(r, f32(448.0))


def _scalings(rule):
    """The scalings of a segment's blocks, by a rule that the compiler knows."""

    @njit(nogil=True, error_model="numpy")
    def scalings(amax, encode, scale, stored, element, tensor_encode):
        """Fill encode, scale and stored for each block: reference_blocks.scaling."""
        nan, one = as_float(QUIET), f32(1.0)
        top_octave, fraction_bits, largest = int(element[0]), int(element[1]), f32(element[2])
        for b in range(amax.size):
            broken = amax[b] >= INFINITY
            value = as_float(amax[b])
            if rule == AMAX:
                factor = min(f32(largest / value), FP32_MAX)
                factor = one if broken or amax[b] == NONE else factor
                back = f32(one / factor)
                kept = back
            elif rule == AMAX_DIVIDE:
                back = f32(value / largest)
                back = nan if broken else back if back != f32(0.0) else one
                factor, kept = back, back
            elif rule == NVFP4:
                kept = to_scale_format(f32(value * f32(tensor_encode * f32(one / largest))))
                kept = nan if broken else kept
                back = f32(kept * f32(one / tensor_encode))
                factor = f32(one / back)
                factor = FP32_MAX if factor > FP32_MAX else factor
            else:
                exponent = exponent_of(amax[b], rule, top_octave, fraction_bits, largest)
                back = nan if broken else power_of_two(exponent)
                factor = nan if broken else power_of_two(-exponent)
                kept = back
            encode[b], scale[b], stored[b] = factor, back, kept

    return scalings


by_floor, by_ceil, by_even, by_rceil, by_amax, by_division, by_nvfp4 = map(_scalings, range(7))


@njit(nogil=True, error_model="numpy")
def scale_blocks(amax, rule, encode, scale, stored, element, tensor_encode, apart):
    """The scalings of a segment's blocks; `apart` leaves fp32 scales out of `scale`."""
    if rule == FLOOR:
        by_floor(amax, encode, scale, stored, element, tensor_encode)
    elif rule == CEIL:
        by_ceil(amax, encode, scale, stored, element, tensor_encode)
    elif rule == EVEN:
        by_even(amax, encode, scale, stored, element, tensor_encode)
    elif rule == RCEIL:
        by_rceil(amax, encode, scale, stored, element, tensor_encode)
    elif rule == AMAX:
        by_amax(amax, encode, scale, stored, element, tensor_encode)
    elif rule == AMAX_DIVIDE:
        by_division(amax, encode, scale, stored, element, tensor_encode)
    else:
        by_nvfp4(amax, encode, scale, stored, element, tensor_encode)
    if apart:
        scale[: amax.size] = stored if rule == NVFP4 else np.ones(amax.size, np.float32)
