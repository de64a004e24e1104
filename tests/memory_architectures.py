"""Ten architectures that are not the laboratory's, tiny and with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from floatscope.memory import Workload

VOCAB, LENGTH = 96, 24
TEXT = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
WIDTH = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip

# Class of the model, class of its configuration, configuration.
HUGGING_FACE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config",
              {**TEXT, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "Llama with grouped queries": ("LlamaForCausalLM", "LlamaConfig",
              {**TEXT, **WIDTH, "num_key_value_heads": 2, "max_position_embeddings": 64}),
    "T5": ("T5ForConditionalGeneration", "T5Config",
           {**TEXT, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
            "decoder_start_token_id": 0}),
    "BERT": ("BertForMaskedLM", "BertConfig",
             {**TEXT, **WIDTH, "max_position_embeddings": 32}),
    "ViT": ("ViTForImageClassification", "ViTConfig",
            {**WIDTH, "image_size": 32, "patch_size": 8, "num_labels": 3}),
    "Mixtral": ("MixtralForCausalLM", "MixtralConfig",
                {**TEXT, **WIDTH, "num_key_value_heads": 2, "max_position_embeddings": 64,
                 "num_local_experts": 4, "num_experts_per_tok": 2}),
}  # fmt: skip


def hugging_face(name: str, recipe: str) -> Workload:
    """One of `HUGGING_FACE`; its loss is what the model returns as such."""
    import transformers

    transformers.logging.set_verbosity_error()
    kind, config_kind, values = HUGGING_FACE[name]
    config = getattr(transformers, config_kind)(**values)
    build: Callable[[], nn.Module] = lambda: getattr(transformers, kind)(config).train()  # noqa: E731
    if name == "ViT":  # its constructor reads a value, so it is built beforehand
        built = build()
        build = lambda: built  # noqa: E731
    return Workload(
        model=build,
        batch=images_and_labels if name == "ViT" else ids_and_labels,
        loss_of=lambda model, batch: model(**batch).loss,
        recipe=recipe,
        backend="native",
    )


def ids_and_labels() -> dict[str, Tensor]:
    ids = torch.randint(3, VOCAB, (2, LENGTH))
    return {"input_ids": ids, "labels": ids}


def images_and_labels() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 2])}


class Residual(nn.Module):
    """Two 3 x 3 convolutions and the identity, as in He et al. 2015."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.relu = nn.ReLU(inplace=True)
        self.skip = nn.Sequential()
        if stride > 1 or before != after:
            self.skip = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norms[0](self.first(x)))
        return self.relu(self.norms[1](self.second(y)) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        self.blocks = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 32, 2))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


class UNet(nn.Module):
    """Ronneberger et al. 2015: down twice, up twice, with connections across."""

    def __init__(self) -> None:
        super().__init__()
        double = lambda a, b: nn.Sequential(  # noqa: E731
            nn.Conv2d(a, b, 3, 1, 1), nn.GroupNorm(2, b), nn.SiLU(), nn.Conv2d(b, b, 3, 1, 1)
        )
        self.down = nn.ModuleList([double(3, 8), double(8, 16)])
        self.bottom = double(16, 32)
        self.up = nn.ModuleList([nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)])
        self.merge = nn.ModuleList([double(32, 16), double(16, 8)])
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        across = []
        for block in self.down:
            x = block(x)
            across.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), across.pop()], dim=1))
        return self.head(x)


class Recurrent(nn.Module):
    """Embedding, two layers of LSTM, head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 32)
        self.lstm = nn.LSTM(32, 48, num_layers=2, batch_first=True)
        self.head = nn.Linear(48, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(ids))[0])


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1),
        nn.Linear(64, 10),
    )  # fmt: skip


def classified() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3, 32, 32), torch.randint(10, (4,))


def ours(name: str, recipe: str) -> Workload:
    """A ResNet, a U-Net, an LSTM or an MLP."""
    cross = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    square = lambda model, x: F.mse_loss(model(x), x)  # noqa: E731
    text = lambda model, ids: F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())  # noqa: E731
    model, batch, loss = {
        "ResNet": (ResNet, classified, cross),
        "MLP": (mlp, classified, cross),
        "U-Net": (UNet, lambda: torch.randn(2, 3, 16, 16), square),
        "LSTM": (Recurrent, lambda: torch.randint(VOCAB, (2, LENGTH)), text),
    }[name]
    return Workload(model=model, batch=batch, loss_of=loss, recipe=recipe, backend="native")
