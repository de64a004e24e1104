"""A Hugging Face `config.json` as a target: the architecture without its weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
)
from torch.utils._python_dispatch import _disable_current_modes

from floatscope.errors import LedgerError
from floatscope.lab.memory.target import Spec, Target, refuse
from floatscope.lab.models import loss_in, output_for
from floatscope.memory.formula import Transformer

BATCH_SIZE, CONTEXT = 1, 1024
TINY_BATCH, TINY_CONTEXT, TINY_IMAGE = 2, 24, 64

_HEADS = (
    "AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM",
    "AutoModelForImageClassification",
)  # fmt: skip
"""In the order in which they are tried where a configuration names no architecture."""

_LAYERS = (
    "num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers", "n_layers",
    "encoder_layers", "decoder_layers",
)  # fmt: skip
_HEADS_OF = ("num_attention_heads", "n_head", "num_heads", "n_heads",
             "encoder_attention_heads", "decoder_attention_heads")  # fmt: skip
_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
_INNER = ("intermediate_size", "n_inner", "d_ff", "hidden_dim", "encoder_ffn_dim",
          "decoder_ffn_dim", "moe_intermediate_size")  # fmt: skip
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
HEADS, HEAD_WIDTH, INNER, EXPERTS, VOCAB, LAYERS = 8, 8, 48, 4, 128, 2


def shrunk(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """A configuration of the same kind at a tiny shape; None where its parts are configurations.

    Two layers, at most eight heads of width 8, as many query heads a key as before, four experts,
    128 tokens. Where the result does not fit together, building the model says so.
    """
    if any(isinstance(value, dict) and "model_type" in value for value in values.values()):
        return None
    heads = next((values[n] for n in _HEADS_OF if _is_count(values.get(n))), None)
    if heads is None:
        return None
    few = min(heads, HEADS)
    small = dict(values)

    def limit(names: Iterable[str], most: int) -> None:
        small.update({n: min(values[n], most) for n in names if _is_count(values.get(n))})

    limit(_LAYERS, LAYERS)
    limit(_HEADS_OF, few)
    limit(_INNER, INNER)
    limit(_EXPERTS, EXPERTS)
    limit(("vocab_size",), VOCAB)
    limit(("head_dim", "d_kv"), HEAD_WIDTH)
    limit(("image_size",), TINY_IMAGE)
    limit(("max_position_embeddings", "n_positions"), 4 * TINY_CONTEXT)
    small.update({n: few * HEAD_WIDTH for n in _WIDTHS if _is_count(values.get(n))})
    if _is_count(values.get("num_key_value_heads")):
        small["num_key_value_heads"] = max(1, few * values["num_key_value_heads"] // heads)
    small.update({k: 0 for k, v in values.items() if k.endswith("_token_id") and _is_count(v)})
    return small


def target_of_config(spec: Spec) -> Target:
    """The target of a `config.json`, or of a folder that has one. Nothing is downloaded.

    Text models get ids of --batch-size x --context (1 x 1024, at most what the configuration's
    positions allow) and the same ids as labels; image models --batch-size images (1).

    Raises:
        LedgerError: transformers is not installed, the file is no configuration that it knows, or
            the model takes neither ids nor images.
    """
    refuse(spec, "its configuration decides", ("attention",))
    auto = _transformers()
    values = _values(Path(spec.model))
    config = _config(auto, values, spec)
    made = _make(spec, config, _model_class(auto, config, spec))
    return Target(**{**vars(made), "tiny": _tiny_target(auto, config, spec)})


def _tiny_target(auto: Any, config: Any, spec: Spec) -> Target | None:
    small = shrunk({**config.to_dict(), "model_type": config.model_type})
    if small is None:
        return None
    context = min(spec.context or TINY_CONTEXT, TINY_CONTEXT)
    changed = replace(spec, batch_size=TINY_BATCH, context=context)
    try:
        config = _config(auto, small, spec)
        kind = _model_class(auto, config, spec)
        if kind.main_input_name != "input_ids":
            changed = replace(changed, context=None)
        return _make(changed, config, kind)
    except LedgerError:
        return None


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise LedgerError(
            "a config.json needs Hugging Face's transformers, which is not installed "
            f"({error}). Install it: pip install 'transformers>=4.50', or floatscope's extra dev."
        ) from None
    transformers.logging.set_verbosity_error()
    return transformers


def _values(path: Path) -> dict[str, Any]:
    path = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise LedgerError(f"{path} is no JSON: {error}.") from None
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise LedgerError(f'{path} is no configuration of a model: it has no "model_type".')
    return values


def _config(auto: Any, values: Mapping[str, Any], spec: Spec) -> Any:
    rest = {key: value for key, value in values.items() if key != "model_type"}
    # Weights are fp32 under every recipe here, whatever a checkpoint is stored in.
    for key in ("dtype", "torch_dtype", "quantization_config"):
        rest.pop(key, None)
    try:
        return auto.AutoConfig.for_model(values["model_type"], **rest)
    except Exception as error:
        raise LedgerError(f"{spec.model}: transformers refuses it: {error}") from None


def _model_class(auto: Any, config: Any, spec: Spec) -> Any:
    for name in getattr(config, "architectures", None) or ():
        if hasattr(auto, name):
            return getattr(auto, name)
    for name in _HEADS:
        head = getattr(auto, name)
        if type(config) in head._model_mapping:
            return head._model_mapping[type(config)]
    raise LedgerError(
        f"{spec.model}: no head with a loss is known for {config.model_type}. Write a function "
        "that makes the model and its batch, and name it as file.py:function."
    )


def _make(spec: Spec, config: Any, kind: Any) -> Target:
    field = getattr(kind, "main_input_name", "input_ids")
    text = _text(config)
    if field == "input_ids":
        size, context = spec.batch_size or BATCH_SIZE, _context(spec, text)
        vocab = int(text.vocab_size)
    elif field == "pixel_values" and _is_count(getattr(config, "image_size", None)):
        refuse(spec, "it reads images", ("context",))
        size, context, vocab = spec.batch_size or BATCH_SIZE, 0, 0
    else:
        raise LedgerError(
            f"{spec.model}: {kind.__name__} reads {field}, which is not made here. Write a "
            "function that makes the model and its batch, and name it as file.py:function."
        )

    def make() -> tuple[nn.Module, Any]:
        if context:
            ids = torch.randint(vocab, (size, context))
            return _built(kind, config), {"input_ids": ids, "labels": ids}
        side, channels = config.image_size, getattr(config, "num_channels", 3)
        labels = torch.zeros(size, dtype=torch.int64)
        images = torch.randn(size, channels, side, side)
        return _built(kind, config), {"pixel_values": images, "labels": labels}

    shape = {"model_type": config.model_type, "class": kind.__name__, "batch_size": size}
    return Target(
        spec=spec,
        kind="config",
        make=make,
        loss_of=lambda model, given: loss_in(output_for(model, given)),
        shape={**shape, **({"context": context} if context else {})},
        standard=_standard(text, size, context),
    )


def _text(config: Any) -> Any:
    get = getattr(config, "get_text_config", None)
    return get() if get is not None else config


def _context(spec: Spec, config: Any) -> int:
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", 0)
    longest = longest if _is_count(longest) else 0
    if spec.context and longest and spec.context > longest:
        raise LedgerError(
            f"--context {spec.context}: {spec.model} has positions for {longest} tokens."
        )
    return spec.context or min(CONTEXT, longest or CONTEXT)


def _built(kind: Any, config: Any) -> nn.Module:
    """The model, with random weights; on fake tensors where building reads values, by way of meta.

    Raises:
        LedgerError: transformers cannot build it.
    """
    try:
        return kind._from_config(config).train()
    except DataDependentOutputException:
        return _on_cpu(_built_on_meta(kind, config))
    except Exception as error:
        name = kind.__name__
        raise LedgerError(
            f"transformers cannot build {name} of this configuration: {error}"
        ) from error


def _built_on_meta(kind: Any, config: Any) -> nn.Module:
    with _disable_current_modes(), torch.device("meta"):
        return kind._from_config(config).train()


def _on_cpu(model: nn.Module) -> nn.Module:
    """`model` with every meta tensor exchanged for one on the CPU, shared ones still shared."""
    new: dict[int, Any] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is None or not tensor.is_meta:
                    continue
                if id(tensor) not in new:
                    new[id(tensor)] = _empty(tensor)
                held[name] = new[id(tensor)]
    return model


def _empty(tensor: Tensor) -> Any:
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    assert isinstance(made, FakeTensor)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made


def _standard(config: Any, size: int, context: int) -> Transformer | None:
    names = ("hidden_size", "num_attention_heads", "num_hidden_layers")
    width, heads, layers = (getattr(config, name, None) for name in names)
    if not context or not all(map(_is_count, (width, heads, layers))):
        return None
    assert width is not None
    assert heads is not None
    assert layers is not None
    return Transformer(
        sequence=context, batch=size, width=width, heads=heads, layers=layers,
        vocab=int(config.vocab_size),
    )  # fmt: skip


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
