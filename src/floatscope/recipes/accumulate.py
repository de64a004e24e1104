"""Matrix products whose sums are kept as real hardware keeps them, or as it might.

    accumulator             how the products of one element of the result add up
    fp32                    torch.mm in fp32: in an order of its own, each sum rounded to fp32
    hopper-fp8              32 at a time, aligned and truncated
    hopper-fp8-promoted     the same, from zero every 128; what comes of it is added in fp32
    ada-fp8                 16 at a time, aligned and truncated
    fp16                    one at a time, each sum rounded to fp16
    kahan                   one at a time in fp32, with Kahan's compensation

All but the first take products in the order of the contracted dimension, from a sum of +0, and give
the same bits everywhere, whatever the number of threads. `reference_accumulate.py` says the same in
exact rationals, one element at a time; tests hold the two equal.

*Aligned sums.* One step adds a block of exact products and the sum so far. With E the largest
exponent among them, each is truncated toward zero to a multiple of 2^(E - 13); these are added
exactly; and the result is truncated toward zero to 14 significant bits and becomes the new sum. The
exponent of a product is the sum of its operands' exponents: 1.5 * 1.5 = 2.25 has exponent 0. Zeros
have none. A sum of zero is +0. Nothing is rounded to nearest. A last block that is not full is
filled with zeros, which change nothing. The order of products within a block does not matter.

The model is that of F. A. Khattak and M. Mikaitis, "Accurate models of NVIDIA tensor cores" (ACM
TACO 23(3), 2026, arXiv 2512.07004), with the constants of mmaemu 0.1.0 (pypi.org/project/mmaemu),
which reports the same bits as cuBLAS on an H100 PCIe (blocks of 32) and as `mma.sync` on an RTX
4060 (blocks of 16). It agrees with what others measured: 14 bits of each product after alignment
and of the sum, 32 products at a time (DeepSeek-V3, arXiv 2412.19437, sections 3.3 and 3.5.2); an
accumulator of 1 sign, 8 exponent and 13 fraction bits (SageAttention2, arXiv 2411.10958). A Hopper
kernel that was built with `mma.sync` rather than `wgmma` uses another unit, and cuBLAS may split
the contracted dimension; neither is modeled. Restarting every 128 and adding in fp32, to nearest,
is DeepSeek-V3's promotion and what cuBLAS does without its fast accumulation. On positive numbers
the sum loses 7 % at K = 4096, since each product is cut to the unit of the sum so far; DeepSeek saw
"nearly 2%" on matrices that it does not describe.

The tensor core reads fp8; here operands are any fp32 numbers, so three things are our own. A
subnormal fp8 number keeps its format's smallest exponent in hardware, see `emins`. Sums have fp32's
exponents: beyond, they are infinite; below 2^-126, multiples of 2^-139, and alignment stops at an
exponent of -132. And what is not finite counts as in an IEEE sum of its block: NaN, or infinities
of both signs, give NaN, infinities of one sign that infinity.

*fp16* is fused: sum and product are added exactly and rounded once, to nearest even, with subnormal
results; 65520 and more becomes infinity. *Kahan* (Kahan 1965) rounds each product to
fp32, then y = product - c, t = sum + y, c = (t - sum) - y, sum = t, all in fp32; c becomes 0 where
the sum is not finite, so that infinity stays infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.errors import RecipeError, unknown
from floatscope.recipes.formats_of import ACCUMULATORS
from floatscope.rounding.outputs import has_values
from floatscope.rounding.threads import Counts, spread

BLOCKS = {"hopper-fp8": (32, 0), "hopper-fp8-promoted": (32, 128), "ada-fp8": (16, 0)}
"""Products that are added at a time, and after which a sum is promoted; 0 for never."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FP32_BITS, FP64_BITS = 24, 53
"""Significant bits of their numbers."""
LARGEST_SUM, SMALLEST_PRODUCT = 2.0**126, 2.0**-98
"""Bounds of sums and products within which the loops in fp32 are right. A product of 2^-98 has an
exponent of -99 at least, above the kernel's LOWEST_FAST."""
MIN_EMIN, MAX_EXPONENT = -149, 127
"""The exponents of the smallest and the largest number in fp32."""
PRODUCTS_AT_A_TIME = 1 << 20
"""That a thread takes."""
NO_BITS = 0xFFFF_FFFF

Array = NDArray[Any]
Tile = Callable[[slice, int, Array], None]


def accumulate(
    a: Tensor, b: Tensor, accumulator: str, *, emins: tuple[int, int] | None = None
) -> Tensor:
    """Multiply two matrices, adding products up as the accumulator does.

    Args:
        a: (M, K), or (B, M, K); fp32, bf16 or fp16, in any layout.
        b: (K, N), or (B, K, N), of the same dimensions; the dtype may differ.
        accumulator: one of `ACCUMULATORS`; the module says what each does.
        emins: for aligned sums, the exponents of the smallest normal numbers in the formats of a
            and b, such as (-6, -14) for e4m3 and e5m2. A tensor core gives subnormal operands this
            exponent, which aligns their products higher. None takes each number's own exponent,
            as it must be where block scales are folded into the values.

    Returns:
        fp32 (M, N) or (B, M, N), contiguous, on the device of a, without a gradient; zeros if K is
        0. A product with a NaN, or of infinity and zero, or infinities of both signs in one sum
        give NaN, whose sign and payload are not specified.

    Raises:
        RecipeError: an unknown accumulator, another dtype, shapes that do not fit, emins outside
            -149 to 0, or, for fp16, operands whose products have more than 40 significant bits.
    """
    _check(a, b, accumulator, emins)
    a, b = a.detach(), b.detach()
    if a.dim() == 3:
        rows = [accumulate(x, y, accumulator, emins=emins) for x, y in zip(a, b, strict=True)]
        shape = (len(a), a.shape[1], b.shape[2])
        return torch.stack(rows) if rows else a.new_zeros(shape, dtype=torch.float32)
    if accumulator == "fp32":
        return torch.mm(a.float(), b.float())
    left, right = (x.to("cpu", torch.float32) for x in (a, b))
    lows = emins if emins is not None else (MIN_EMIN, MIN_EMIN)
    if right.shape[1] < left.shape[0] and right.shape[1] < _kernels().COLUMNS:
        # Columns make the vectors; products and sums do not care which operand has them.
        return (
            _computed(right.mT, left.mT, accumulator, (lows[1], lows[0]))
            .mT.contiguous()
            .to(a.device)
        )
    return _computed(left, right, accumulator, lows).to(a.device)


def _check(a: Tensor, b: Tensor, accumulator: str, emins: tuple[int, int] | None) -> None:
    if accumulator not in ACCUMULATORS:
        raise RecipeError(unknown("accumulator", accumulator, ACCUMULATORS))
    for x in (a, b):
        if x.dtype not in DTYPES:
            raise RecipeError(f"operands must be fp32, bf16 or fp16, not {x.dtype}.")
    shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
    if a.dim() != b.dim() or a.dim() not in (2, 3) or a.shape[:-2] != b.shape[:-2]:
        raise RecipeError(
            f"operands must be two matrices, or two equally long stacks; got {shapes}."
        )
    if a.shape[-1] != b.shape[-2]:
        raise RecipeError(f"the inner dimensions must be equal; got {shapes}.")
    if a.device != b.device:
        raise RecipeError(f"operands must be on one device; got {a.device} and {b.device}.")
    if emins is not None and not all(MIN_EMIN <= e <= 0 for e in emins):
        raise RecipeError(f"emins must lie between {MIN_EMIN} and 0; got {emins}.")


@dataclass(frozen=True)
class _Facts:
    """What decides which loop may run."""

    largest: float
    """Of all magnitudes; infinite or NaN if one of them is."""
    smallest: float
    """Of all magnitudes but zero; infinite if there are none."""
    bits: int
    """Significant bits, at most, of a finite value."""

    @staticmethod
    def of(x: Tensor) -> _Facts:
        """Of a contiguous, non-empty fp32 tensor on the CPU."""
        found = _kernels().facts(x.view(-1).numpy().view(np.uint32))
        largest, smallest, fractions = np.array(found, np.uint32)
        lowest_bit = int(fractions) & -int(fractions)
        return _Facts(
            float(largest.view(np.float32)),
            float(smallest.view(np.float32)) if smallest < NO_BITS else math.inf,
            FP32_BITS + 1 - lowest_bit.bit_length() if lowest_bit else 1,
        )

    def octaves(self, emin: int) -> tuple[int, int]:
        """Bounds of the exponents of all finite values but zero, none of them below emin."""
        lowest, highest = (
            max(math.frexp(x)[1] - 1, emin) if math.isfinite(x) else MAX_EXPONENT
            for x in (self.smallest, self.largest)
        )
        return min(lowest, highest), highest


def _fit_fp32(a: _Facts, b: _Facts, depth: int) -> bool:
    """Whether fp32 holds every product and every sum of `depth` of them, none underflowing."""
    return (
        a.bits + b.bits <= FP32_BITS
        and a.largest * b.largest * depth < LARGEST_SUM
        and a.smallest * b.smallest >= SMALLEST_PRODUCT
    )


def _kernels() -> Any:
    """The module of the kernels, which takes a second to import, at first use."""
    from floatscope.recipes.kernels import numba_accumulate

    return numba_accumulate


def _computed(a: Tensor, b: Tensor, accumulator: str, emins: tuple[int, int]) -> Tensor:
    """The product of two fp32 matrices on the CPU, with any accumulator but fp32."""
    a, b = a.contiguous(), b.contiguous()
    if 0 in (*a.shape, *b.shape) or not has_values(a):
        return torch.zeros(a.shape[0], b.shape[1])
    facts = _Facts.of(a), _Facts.of(b)
    if accumulator in BLOCKS:
        return _aligned(a, b, facts, emins, *BLOCKS[accumulator])
    return _half(a, b, facts) if accumulator == "fp16" else _kahan(a, b, facts)


def _kahan(a: Tensor, b: Tensor, facts: tuple[_Facts, _Facts]) -> Tensor:
    from floatscope.recipes.kernels import numba_running

    fits = facts[0].largest * facts[1].largest * a.shape[1] < LARGEST_SUM
    kernel = numba_running.kahan_tile if fits else numba_running.kahan_tile_wide
    left, panels = a.numpy(), _packed(b)

    def tile(rows: slice, panel: int, out: Array) -> None:
        kernel(left[rows], panels[panel], out)

    return _by_tiles(a.shape, b.shape[1], tile)


def _half(a: Tensor, b: Tensor, facts: tuple[_Facts, _Facts]) -> Tensor:
    """Sums in fp16.

    A loop rounds each sum to its own precision p first, and then to the 11 bits of fp16. That is
    rounding once, unless the sum is inexact in p bits and close to the middle between two numbers
    of fp16. A product that can take the sum there is at least 2^-12 of the sum before. If it has w
    significant bits, it ends at most 11 + w bits below the sum's leading bit, and the new sum may
    begin 1 above it: it is exact if w + 13 <= p. If the product is the larger of the two, the same
    holds with the 11 bits of the sum. Subnormal numbers of fp16 only make the sum shorter.
    """
    from floatscope.recipes.kernels import numba_running as kernels

    bits, most = facts[0].bits + facts[1].bits, FP64_BITS - 13
    if bits > most:
        raise RecipeError(
            f"products have up to {bits} significant bits; sums in fp16 take at most {most}. Round "
            "the operands to a format of 16 bits first."
        )
    is_narrow = bits <= FP32_BITS - 13 and _fit_fp32(*facts, a.shape[1]) and kernels.CONVERTS_HALF
    kernel = kernels.half_tile if is_narrow else kernels.half_tile_wide
    dtype = torch.float32 if is_narrow else torch.float64
    left, panels = a.to(dtype).numpy(), _packed(b, dtype=dtype)

    def tile(rows: slice, panel: int, out: Array) -> None:
        kernel(left[rows], panels[panel], out)

    return _by_tiles(a.shape, b.shape[1], tile, left.dtype)


def _aligned(
    a: Tensor, b: Tensor, facts: tuple[_Facts, _Facts], emins: tuple[int, int],
    block: int, promote: int,
) -> Tensor:  # fmt: skip
    kernels = _kernels()
    is_narrow = _fit_fp32(*facts, a.shape[1])
    kernel = kernels.aligned_tile if is_narrow else kernels.aligned_tile_wide
    (low_a, high_a), (low_b, high_b) = facts[0].octaves(emins[0]), facts[1].octaves(emins[1])
    span = high_a - low_a + high_b - low_b
    kind = np.int8 if is_narrow and span <= kernels.MAX_SPAN else np.int16
    depth = -(-a.shape[1] // block) * block
    left = torch.nn.functional.pad(a, (0, depth - a.shape[1])).numpy()
    panels = _packed(b, depth)
    of_left = _exponents(left, emins[0], high_a, kind)
    of_panels = [_exponents(panel, emins[1], high_b, kind) for panel in panels]
    base, nothing = high_a + high_b, kernels.NOTHING[kind]

    def tile(rows: slice, panel: int, out: Array) -> None:
        kernel(
            left[rows], panels[panel], of_left[rows], of_panels[panel],
            base, nothing, block, promote, out,
        )  # fmt: skip

    return _by_tiles(a.shape, b.shape[1], tile)


def _exponents(values: Array, emin: int, base: int, kind: Any) -> Array:
    """Exponents above `base`, in the shape of the values, in 8 or 16 bits."""
    kernels = _kernels()
    result = np.empty(values.shape, kind)
    flat, out, nothing = values.reshape(-1), result.reshape(-1), kernels.NOTHING[kind]

    def take(start: int, stop: int, _: Counts) -> None:
        kernels.exponents(flat[start:stop], emin, base, nothing, out[start:stop])

    spread(take, values.size, 0)
    return result


def _packed(b: Tensor, depth: int = 0, dtype: torch.dtype = torch.float32) -> list[Array]:
    """The columns of b (K, N) by panels, filled up with zeros to `depth` or more rows.

    Returns:
        Panels (rows * width,), row by row; widths are multiples of COLUMNS.
    """
    kernels, panels = _kernels(), []
    for columns in b.split(kernels.PANEL, dim=1):
        width = -(-columns.shape[1] // kernels.COLUMNS) * kernels.COLUMNS
        panel = torch.zeros(max(depth, b.shape[0]), width, dtype=dtype)
        panel[: b.shape[0], : columns.shape[1]] = columns
        panels.append(panel.view(-1).numpy())
    return panels


def _by_tiles(shape: torch.Size, num_columns: int, tile: Tile, dtype: Any = np.float32) -> Tensor:
    """Put a result together from tiles, which threads take as they come free.

    Args:
        shape: of the left operand (M, K).
        num_columns: N.
        tile: adds up the products of some rows and of a panel, by its index, into zeros.
        dtype: of the sums.

    Returns:
        fp32 (M, N).
    """
    kernels = _kernels()
    num_rows, height, most = shape[0], kernels.ROWS, kernels.PANEL
    result = np.empty((num_rows, num_columns), np.float32)
    num_tiles = -(-num_rows // height)

    def work(start: int, stop: int, _: Counts) -> None:
        for index in range(start, stop):
            panel, first = index // num_tiles, index % num_tiles * height
            rows = slice(first, min(first + height, num_rows))
            columns = slice(panel * most, min((panel + 1) * most, num_columns))
            size = columns.stop - columns.start
            width = -(-size // kernels.COLUMNS) * kernels.COLUMNS
            out = np.zeros((rows.stop - first, width), dtype)
            tile(rows, panel, out)
            result[rows, columns] = out[:, :size]

    count = num_tiles * -(-num_columns // most)
    spread(work, count, 0, piece=max(1, PRODUCTS_AT_A_TIME // (height * most * shape[1])))
    return torch.from_numpy(result)
