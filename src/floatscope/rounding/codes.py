"""Codes: tensors as the bits of a format, and several codes to a byte."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from floatscope.errors import FormatError
from floatscope.formats import Format, IntFormat, decode
from floatscope.rounding.anywhere import PIECE, encode_anywhere
from floatscope.rounding.cast import DTYPES, cast_to, check_holds, keyed
from floatscope.rounding.grid import carrier_of
from floatscope.rounding.modes import Overflow, Rounding
from floatscope.rounding.on_cpu import encode_cpu
from floatscope.rounding.outputs import can_write, check_plain, mark_changed, source_for
from floatscope.rounding.random_bits import StochasticKey
from floatscope.rounding.receipt import Receipt
from floatscope.rounding.reference import RANDOM_BITS
from floatscope.rounding.rules import Rules, ScalarFormat
from floatscope.rounding.tensors import settle

TABLE_BITS = 16
"""Formats of up to so many bits are decoded by a table of all their values."""

_UNSIGNED = ((8, torch.uint8), (16, torch.uint16), (32, torch.uint32), (64, torch.uint64))


def encode_to(
    x: Tensor,
    form: Format | str,
    rules: Rules | str | None = None,
    *,
    rounding: Rounding | None = None,
    overflow: Overflow | None = None,
    flush_subnormals: bool | None = None,
    out: Tensor | None = None,
    key: StochasticKey | int | None = None,
    generator: torch.Generator | None = None,
    random_bits: int = RANDOM_BITS,
    receipt: Receipt | None = None,
) -> Tensor:
    """Round to a float or integer format, like `round_to`, and return the codes.

    Args as there; `out` is contiguous and of the result's dtype.

    Returns:
        A contiguous tensor of `x`'s shape in the smallest unsigned dtype that holds a code; unused
        upper bits are zero.

    Raises:
        FormatError: as `round_to`.
    """
    cast = cast_to(form, rules, rounding, overflow, flush_subnormals)
    cast = keyed(cast, key, generator, random_bits)
    if not isinstance(x, Tensor) or x.dtype not in DTYPES:
        raise FormatError(f"encode_to takes floating-point tensors, not {_kind(x)}.")
    check_plain(x, "encode_to")
    source = source_for(x, out)
    dtype = code_dtype(cast.form)
    if out is not None and not (
        out.shape == x.shape and out.dtype == dtype and out.device == x.device
        and can_write(out, "encode_to")
    ):  # fmt: skip
        raise FormatError(f"out must be contiguous, of shape {tuple(x.shape)} and {dtype}.")
    codes = torch.empty(x.shape, dtype=dtype, device=x.device) if out is None else out
    if x.device.type == "cpu":
        counts = encode_cpu(source, codes, cast, is_counted=receipt is not None)
    else:
        counts = encode_anywhere(source, codes, cast)
    if out is not None:
        mark_changed(out)
    settle(cast, x.numel(), counts, receipt)
    return codes


def code_dtype(form: ScalarFormat) -> torch.dtype:
    """The smallest unsigned dtype that holds a code of the format."""
    return next(dtype for bits, dtype in _UNSIGNED if form.width <= bits)


def decode_from(codes: Tensor, form: Format | str, *, dtype: torch.dtype | None = None) -> Tensor:
    """The values of codes.

    Args:
        codes: tensor of any integer dtype.
        form: a float or integer format, or its name.
        dtype: of the result; float32 by default, or float64 for formats wider than that.

    Raises:
        FormatError: a dtype that does not hold the format, no integers, or a number that is no code
            of the format.
    """
    form = cast_to(form, None, None, None, None).form
    if dtype is None:
        dtype = torch.float32 if _fits_fp32(form) else torch.float64
    check_holds(dtype, form)
    if not isinstance(codes, Tensor) or codes.is_floating_point() or codes.is_complex():
        raise FormatError(f"codes are integers, not {_kind(codes)}.")
    flat = codes.reshape(-1)
    out = torch.empty(flat.shape, dtype=dtype, device=codes.device)
    for start in range(0, flat.numel(), PIECE):
        piece = flat[start : start + PIECE].to(torch.int64)
        if codes.dtype.itemsize * 8 > form.width and _outside(piece, form):
            raise FormatError(
                f"there are numbers above {form.num_codes - 1:#x}, {form.name}'s last code."
            )
        out[start : start + PIECE] = _values(piece, form)
    return out.view(codes.shape)


def pack(codes: Tensor, width: int) -> Tensor:
    """Codes of `width` bits side by side in bytes, along the last dimension.

    The first code takes the lowest bits of the first byte, as in Torch's `float4_e2m1fn_x2`: two of
    4 bits in a byte, four of 6 bits in three. Bits left over at the end are zero.

    Returns:
        A uint8 tensor with ceil(n * width / 8) in place of the n of the last dimension.
    """
    _check_packable(width, codes)
    if codes.numel() and bool(((codes.long() < 0) | (codes.long() >> width != 0)).any()):
        raise FormatError(f"there are numbers that are no codes of {width} bits.")
    count = codes.shape[-1]
    if width == 4 and count % 2 == 0:
        small = codes.to(torch.uint8)
        return small[..., 0::2] | (small[..., 1::2] << 4)
    shifts = torch.arange(width, device=codes.device)
    bits = (codes.to(torch.int64)[..., None] >> shifts & 1).flatten(-2)
    bits = torch.nn.functional.pad(bits, (0, -bits.shape[-1] % 8))
    weights = 1 << torch.arange(8, device=codes.device)
    return (bits.unflatten(-1, (-1, 8)) * weights).sum(-1).to(torch.uint8)


def unpack(packed: Tensor, width: int, count: int) -> Tensor:
    """The `count` codes of `width` bits that `pack` put into bytes, as int64 or, to 8 bits, uint8.

    Raises:
        FormatError: too few bytes.
    """
    _check_packable(width, packed)
    if packed.dtype != torch.uint8 or count < 0:
        raise FormatError(f"unpack takes uint8 and a count, not {packed.dtype} and {count}.")
    if packed.shape[-1] * 8 < count * width:
        raise FormatError(
            f"{packed.shape[-1]} bytes hold {packed.shape[-1] * 8 // width} codes of {width} bits, "
            f"not {count}."
        )
    bits = (packed.to(torch.int64)[..., None] >> torch.arange(8, device=packed.device) & 1).flatten(
        -2
    )
    weights = 1 << torch.arange(width, device=packed.device)
    codes = (bits[..., : count * width].unflatten(-1, (count, width)) * weights).sum(-1)
    return codes.to(torch.uint8) if width <= 8 else codes


def _check_packable(width: int, codes: Tensor) -> None:
    if not isinstance(codes, Tensor) or codes.is_floating_point() or codes.is_complex():
        raise FormatError(f"codes are tensors of integers, not {_kind(codes)}.")
    if not 1 <= width <= 32:
        raise FormatError(f"codes of 1 to 32 bits can be packed, not of {width}.")
    if codes.ndim == 0:
        raise FormatError("packing goes along the last dimension, and a single number has none.")


def _values(codes: Tensor, form: ScalarFormat) -> Tensor:
    """Values of int64 codes, in fp64."""
    if form.width <= TABLE_BITS:
        return _table(form).to(codes.device)[codes]
    if isinstance(form, IntFormat):
        half = 1 << (form.width - 1)
        return torch.where(codes >= half, codes - 2 * half, codes).double() * float(form.step)
    carrier_of(form, 64)  # refuses what fp64 does not hold
    magnitude = codes & ((form.sign_mask or form.num_codes) - 1)
    field, fraction = magnitude >> form.fraction_bits, magnitude & ((1 << form.fraction_bits) - 1)
    bits = (field - form.bias + 1023) << 52 | fraction << (52 - form.fraction_bits)
    values = bits.view(torch.float64)
    values = torch.where(field == 0, fraction.double() * float(form.smallest), values)
    if form.infinity_code is not None:
        values = torch.where(magnitude == form.infinity_code, torch.inf, values)
        values = torch.where(magnitude > form.infinity_code, torch.nan, values)
    elif form.nan_code == form.sign_mask:
        values = torch.where(codes == form.nan_code, torch.nan, values)
    elif form.nan_code is not None:
        values = torch.where(magnitude == form.nan_code, torch.nan, values)
    return torch.where(codes & form.sign_mask != 0, -values, values)


@cache
def _table(form: ScalarFormat) -> Tensor:
    value = form.decode if isinstance(form, IntFormat) else lambda code: decode(code, form)
    return torch.tensor(
        [float(value(code)) for code in range(form.num_codes)], dtype=torch.float64, device="cpu"
    )


def _outside(codes: Tensor, form: ScalarFormat) -> bool:
    return bool(((codes < 0) | (codes >= form.num_codes)).any())


def _fits_fp32(form: ScalarFormat) -> bool:
    try:
        check_holds(torch.float32, form)
    except FormatError:
        return False
    return True


def _kind(x: object) -> str:
    return f"{x.dtype}" if isinstance(x, Tensor) else type(x).__name__
