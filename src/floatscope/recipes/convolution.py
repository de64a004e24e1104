"""Convolutions as matrix products: the patches of the input times the kernels.

A convolution contracts channels and kernel positions, so this is where blocks run. Grouped,
transposed and three-dimensional convolutions are not taken apart here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

aten = torch.ops.aten

Product = Callable[[Tensor, Tensor, str, str], Tensor]
"""(a, b, role of a, role of b) -> a @ b, quantized."""


@dataclass(frozen=True)
class Shape:
    """What a two-dimensional convolution is besides its tensors."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def size(self, given: tuple[int, ...]) -> tuple[int, ...]:
        """Height and width of the output."""
        return tuple(
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(
                given, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )


def why_not(weight: Tensor, transposed: bool, groups: int) -> str:
    """Why a convolution is not taken apart; empty if it is."""
    if transposed:
        return "a transposed convolution"
    if groups != 1:
        return "a grouped convolution"
    return "" if weight.ndim in (3, 4) else "a convolution of more than two dimensions"


def shape_of(weight: Tensor, stride: list[int], padding: list[int], dilation: list[int]) -> Shape:
    """The shape of a convolution of one or two dimensions, as one of two."""
    if weight.ndim == 4:
        kernel = tuple(weight.shape[2:])
        return Shape(kernel, tuple(stride), tuple(padding), tuple(dilation))
    return Shape((1, weight.shape[2]), (1, *stride), (0, *padding), (1, *dilation))


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape, product: Product
) -> Tensor:
    """The convolution of x (B, C, H, W), or (B, C, W), with weight (O, C, kernel)."""
    patches = _patches(_flat(x), shape)
    result = product(patches, weight.reshape(len(weight), -1).t(), "activation", "weight")
    size = shape.size(tuple(_flat(x).shape[2:]))
    result = result.view(len(x), *size, -1).movedim(-1, 1)
    if bias is not None:
        result = result + bias.to(result.dtype)[:, None, None]
    return (result if x.ndim == 4 else result.squeeze(2)).contiguous()


def backward(
    gradient: Tensor, x: Tensor, weight: Tensor, shape: Shape, wanted: list[bool], product: Product
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of input, weight and bias, those that are wanted."""
    outer = gradient if gradient.ndim == 4 else gradient.unsqueeze(2)
    rows = outer.movedim(1, -1).reshape(-1, outer.shape[1])
    matrix = weight.reshape(len(weight), -1)
    of_input = of_weight = of_bias = None
    if wanted[0]:
        columns = product(rows, matrix, "gradient", "weight")
        columns = columns.view(len(x), -1, matrix.shape[1]).transpose(1, 2).float()
        size = list(_flat(x).shape[2:])
        folded = aten.col2im(
            columns, size, shape.kernel, shape.dilation, shape.padding, shape.stride
        )
        of_input = folded.view_as(x).to(gradient.dtype)
    if wanted[1]:
        patches = _patches(_flat(x), shape)
        of_weight = product(rows.t(), patches, "gradient", "activation").view_as(weight)
    if wanted[2]:
        of_bias = outer.float().sum((0, 2, 3)).to(gradient.dtype)
    return of_input, of_weight, of_bias


def _flat(x: Tensor) -> Tensor:
    return x if x.ndim == 4 else x.unsqueeze(2)


def _patches(x: Tensor, shape: Shape) -> Tensor:
    """What each output sees: (B * height * width, C * kernel), in fp32 or the dtype of x."""
    columns = aten.im2col(x.float(), shape.kernel, shape.dilation, shape.padding, shape.stride).to(
        x.dtype
    )
    return columns.transpose(1, 2).reshape(-1, columns.shape[1])
