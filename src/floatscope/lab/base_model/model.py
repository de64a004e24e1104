"""A character GPT, small enough to train in two minutes: the model of the lecture.

It is plainer than the laboratory's own GPT: LayerNorm, learned positions, an output head of its
own. Nothing has a bias. A key's bias would have gradient zero by symmetry (it shifts all scores of
a row alike), so that rounding noise would make nearly all of the smallest gradients.

Attention is written out, so that scores and probabilities are tensors that a 16-bit model rounds.

Shape suffixes: B = batch, T = tokens, D = model width, N = heads, H = width of one head
(D = N * H), V = vocabulary.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from floatscope.lab.base_model.config import BASE_CONFIG, BaseConfig

INIT_STD = (
    0.06  # half of 1 / sqrt(width); 0.02, made for widths of 768 and more, learns more slowly
)


class LayerNorm(nn.Module):
    """LayerNorm with a gain (Ba et al. 2016); its gains start at 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.layer_norm(x_BTD, self.weight.shape, self.weight)


class SelfAttention(nn.Module):
    """Causal multi-head attention."""

    future_TT: Tensor

    def __init__(self, config: BaseConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        future_TT = torch.full((config.context, config.context), -torch.inf).triu(1)
        self.register_buffer("future_TT", future_TT, persistent=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        heads = (B, T, self.config.num_heads, self.config.head_width)
        q_BNTH = self.q(x_BTD).view(heads).transpose(1, 2)
        k_BNTH = self.k(x_BTD).view(heads).transpose(1, 2)
        v_BNTH = self.v(x_BTD).view(heads).transpose(1, 2)
        scores_BNTT = (q_BNTH @ k_BNTH.transpose(-2, -1)) * self.config.head_width**-0.5
        y_BNTH = (scores_BNTT + self.future_TT[:T, :T]).softmax(dim=-1) @ v_BNTH
        return self.o(y_BNTH.transpose(1, 2).reshape(B, T, D))


class Block(nn.Module):
    """Attention and a feed-forward layer, each added to the residual stream after its own norm."""

    def __init__(self, config: BaseConfig) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(config.width)
        self.attention = SelfAttention(config)
        self.ff_norm = LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width, bias=False)
        self.down = nn.Linear(4 * config.width, config.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD))
        return x_BTD + self.down(F.gelu(self.up(self.ff_norm(x_BTD))))


class CharGPT(nn.Module):
    """Character numbers (B, T) in, logits (B, T, V) out."""

    def __init__(self, config: BaseConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Parameter(torch.empty(config.context, config.width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTD = self.embedding(ids_BT) + self.positions[: ids_BT.shape[1]]
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(self.norm(x_BTD))


def make_model(config: BaseConfig = BASE_CONFIG, seed: int = 0) -> CharGPT:
    """A freshly initialized model in fp32 whose weights depend on `config` and `seed` alone.

    Matrices are normal with standard deviation 0.06; what projects back into the residual stream is
    divided by sqrt(2 layers) (Radford et al. 2019); gains are 1.
    """
    with torch.device("cpu"):
        model = CharGPT(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                into_residual = name.endswith((".o.weight", ".down.weight"))
                depth = math.sqrt(2 * config.num_layers) if into_residual else 1.0
                parameter.normal_(0.0, INIT_STD / depth, generator=generator)
    return model
