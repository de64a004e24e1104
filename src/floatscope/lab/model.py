"""The laboratory's GPT: one small decoder, every tensor in plain sight.

RoPE, pre-RMSNorm, SwiGLU, no biases, and the embedding tied to the output head. It is written for
reading and for bookkeeping: q, k, v, o, gate, up and down are separate `nn.Linear` layers, so the
saved activations can be counted term by term and every product has a module of its own.

Shape suffixes: B = batch, T = tokens, D = model width, N = heads, H = width of one head
(D = N * H), F = width of the feed-forward, V = vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from floatscope.lab.gpt_config import GPTConfig

NORM_EPS = 1e-6
INIT_STD = 0.02  # GPT-2's; projections back into the residual stream get 0.02 / sqrt(2 layers)


def rotary_tables(context: int, head_width: int, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the RoPE angles, each (T, H/2) in fp32 (Su et al. 2021)."""
    frequency_H = base ** (-torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    angle_TH = torch.arange(context, dtype=torch.float64)[:, None] * frequency_H
    return angle_TH.cos().float(), angle_TH.sin().float()


def rotate(x_BNTH: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
    """Apply RoPE by halves: the first half of a head pairs with the second."""
    cos_TH, sin_TH = cos_TH.to(x_BNTH.dtype), sin_TH.to(x_BNTH.dtype)
    left, right = x_BNTH.chunk(2, dim=-1)
    return torch.cat((left * cos_TH - right * sin_TH, right * cos_TH + left * sin_TH), dim=-1)


class RMSNorm(nn.Module):
    """Root-mean-square normalization with a gain (Zhang & Sennrich 2019)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.rms_norm(x_BTD, self.weight.shape, self.weight, NORM_EPS)


class SelfAttention(nn.Module):
    """Causal multi-head attention with rotary positions.

    With `qk_norm`, q and k are normalized over H in fp32 (Dehghani et al. 2023, by RMSNorm here).
    """

    look: Callable[[Tensor, Tensor], None] | None = None
    """Called with q and k, rotated, in each forward."""
    future_TT: Tensor
    cos_TH: Tensor
    sin_TH: Tensor

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_width)
            self.k_norm = RMSNorm(config.head_width)
        cos_TH, sin_TH = rotary_tables(config.context, config.head_width)
        self.register_buffer("cos_TH", cos_TH, persistent=False)
        self.register_buffer("sin_TH", sin_TH, persistent=False)
        future_TT = torch.ones(config.context, config.context, dtype=torch.bool).triu(1)
        self.register_buffer("future_TT", future_TT, persistent=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        heads = (B, T, self.config.num_heads, self.config.head_width)
        q_BNTH = self.q(x_BTD).view(heads).transpose(1, 2)
        k_BNTH = self.k(x_BTD).view(heads).transpose(1, 2)
        v_BNTH = self.v(x_BTD).view(heads).transpose(1, 2)
        if self.config.qk_norm:
            q_BNTH, k_BNTH = self.q_norm(q_BNTH.float()), self.k_norm(k_BNTH.float())
        q_BNTH = rotate(q_BNTH, self.cos_TH[:T], self.sin_TH[:T])
        k_BNTH = rotate(k_BNTH, self.cos_TH[:T], self.sin_TH[:T])
        if self.look is not None:
            self.look(q_BNTH, k_BNTH)
        if self.config.attention == "fused":
            y_BNTH = F.scaled_dot_product_attention(q_BNTH, k_BNTH, v_BNTH, is_causal=True)
        else:
            y_BNTH = self._materialized(q_BNTH, k_BNTH, v_BNTH)
        return self.o(y_BNTH.transpose(1, 2).reshape(B, T, D))

    def _materialized(self, q_BNTH: Tensor, k_BNTH: Tensor, v_BNTH: Tensor) -> Tensor:
        T = q_BNTH.shape[2]
        scores_BNTT = (q_BNTH @ k_BNTH.transpose(-2, -1)) * self.config.head_width**-0.5
        scores_BNTT = scores_BNTT.masked_fill(self.future_TT[:T, :T], -torch.inf)
        return scores_BNTT.softmax(dim=-1) @ v_BNTH


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.ff_width, bias=False)
        self.up = nn.Linear(config.width, config.ff_width, bias=False)
        self.down = nn.Linear(config.ff_width, config.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))


class Block(nn.Module):
    """Attention and feed-forward, each added to the residual stream after its own norm."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width)
        self.attention = SelfAttention(config)
        self.ff_norm = RMSNorm(config.width)
        self.ff = FeedForward(config)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD))
        return x_BTD + self.ff(self.ff_norm(x_BTD))


class GPT(nn.Module):
    """Token ids (B, T) in, logits (B, T, V) out.

    The default configuration has 3 688 704 parameters in 38 tensors.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.width)

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTD = self.embedding(ids_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return F.linear(self.norm(x_BTD), self.embedding.weight)  # tied head


def make_gpt(config: GPTConfig, seed: int) -> GPT:
    """A freshly initialized GPT in fp32 whose weights depend on `config` and `seed` alone.

    Matrices are normal with standard deviation 0.02; o and down are divided by sqrt(2 layers), so
    that the residual stream does not grow with depth (Radford et al. 2019); gains are 1.
    """
    with torch.device("cpu"):
        model = GPT(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                into_residual = name.endswith(("attention.o.weight", "ff.down.weight"))
                depth = math.sqrt(2 * config.num_layers) if into_residual else 1.0
                parameter.normal_(0.0, INIT_STD / depth, generator=generator)
    return model
