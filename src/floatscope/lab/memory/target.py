"""What `floatscope memory` looks at: a preset, a study file, a user's own model, or a config.json.

A `Spec` is plain data, so that another process can be told; `Target` makes workloads of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from floatscope.errors import FloatscopeError, LedgerError, StudyError, unknown
from floatscope.lab.gpt_config import GPTConfig
from floatscope.lab.identity import said
from floatscope.lab.memory.optimizers import optimizer_called
from floatscope.lab.models import factory_called, loss_in, output_for
from floatscope.lab.run.batches import Batch
from floatscope.lab.study.presets import PRESETS
from floatscope.memory.closed_form import ATTENTIONS, GPTNumbers
from floatscope.memory.formula import Transformer
from floatscope.memory.storages import mapped, tensors_in
from floatscope.memory.workload import Workload

LARGEST_BATCH = 1 << 20
TINY = GPTConfig(vocab_size=96, context=16, num_layers=2, width=32, num_heads=2, ff_width=48)


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What the command line was given."""

    model: str
    """A preset, FILE.toml, package.module:function, file.py:function or config.json."""
    batch_size: int | None = None
    """Sequences or images; None is the model's own or the default of its kind."""
    context: int | None = None
    """Tokens in a sequence; None likewise."""
    attention: str | None = None
    """"fused" or "materialized"; None likewise. For presets and study files."""
    optimizer: str = "adamw"
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class Target:
    """A model to account for."""

    spec: Spec
    kind: Literal["laboratory", "factory", "config"]
    make: Callable[[], tuple[nn.Module, Any]]
    """Makes the model and what it is called with, anew, on the CPU."""
    loss_of: Callable[[nn.Module, Any], Tensor]
    shape: dict[str, Any] = field(default_factory=dict)
    """Numbers that decide the memory, where they are known; for the record."""
    numbers: GPTNumbers | None = None
    """Where there is a closed form."""
    standard: Transformer | None = None
    """Where the standard block's formula can be set beside it."""
    tiny: Target | None = None
    """The same model at a shape that runs anywhere; None where it cannot be made."""
    notes: tuple[str, ...] = ()

    def workload(self, recipe: str, backend: str = "auto") -> Workload:
        """Two steps of it under a recipe.

        Raises:
            LedgerError: an unknown optimizer.
        """
        made: list[Any] = []

        def model() -> nn.Module:
            module, given = self.make()
            made[:] = [given]
            return module if self.spec.device == "cpu" else module.to(self.spec.device)

        return Workload(
            model=model,
            batch=lambda: _moved(made.pop(), self.spec.device),
            loss_of=self.loss_of,
            optimizer=optimizer_called(self.spec.optimizer),
            recipe=recipe,
            backend=backend,
        )

    def parameter_sizes(self) -> list[int]:
        """Elements of each parameter tensor that requires a gradient; nothing is allocated.

        Raises:
            LedgerError: the model cannot be made without reading values.
        """
        try:
            with FakeTensorMode(allow_fallback_kernels=False):
                model, _ = self.make()
        except FloatscopeError:
            raise
        except Exception as error:
            raise LedgerError(
                f"{self.spec.model} cannot be made without values ({error}); measure it."
            ) from error
        return [p.numel() for p in model.parameters() if p.requires_grad]


def target_of(spec: Spec) -> Target:
    """The target that a spec names.

    Raises:
        StudyError: no such preset, file or function, or a shape that is out of range.
        LedgerError: an option that this kind of model does not have, an unknown optimizer or
            device, or transformers is needed and not installed.
    """
    optimizer_called(spec.optimizer)
    _check_device(spec.device)
    for name in ("batch_size", "context"):
        value = getattr(spec, name)
        if value is not None and not 1 <= value <= LARGEST_BATCH:
            option = f"--{name.replace('_', '-')}"
            raise LedgerError(f"{option} must lie between 1 and {LARGEST_BATCH}, not {value}.")
    if spec.attention is not None and spec.attention not in ATTENTIONS:
        raise LedgerError(unknown("attention", spec.attention, ATTENTIONS))
    if spec.model in PRESETS or spec.model.endswith(".toml"):
        return _laboratory(spec)
    if spec.model.endswith(".json") or (Path(spec.model) / "config.json").is_file():
        from floatscope.lab.memory.hugging_face import target_of_config

        return target_of_config(spec)
    if ":" in spec.model:
        return _factory(spec)
    kinds = [*PRESETS, "FILE.toml", "PACKAGE.MODULE:FUNCTION", "FILE.py:FUNCTION", "config.json"]
    raise StudyError(unknown("model", spec.model, kinds))


def _laboratory(spec: Spec) -> Target:
    from floatscope.lab.study.choose import choose

    plan = choose(spec.model)
    changes = {"context": spec.context, "attention": spec.attention}
    try:
        config = replace(plan.model, **{k: v for k, v in changes.items() if v is not None})
    except ValueError as error:
        raise StudyError(f"{error}.") from None
    batch_size = spec.batch_size or plan.train.batch_size
    tiny = _of_config(spec, replace(TINY, attention=config.attention, qk_norm=config.qk_norm), 4)
    return replace(_of_config(spec, config, batch_size), tiny=tiny)


def _of_config(spec: Spec, config: GPTConfig, batch_size: int) -> Target:
    from floatscope.lab.model import make_gpt
    from floatscope.lab.run.train import batch_loss

    def make() -> tuple[nn.Module, Any]:
        ids = torch.randint(config.vocab_size, (batch_size, config.context + 1))
        batch = Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        return make_gpt(config, seed=1), batch

    numbers = None if config.qk_norm else GPTNumbers(**said(config), batch_size=batch_size)
    standard = Transformer(
        sequence=config.context, batch=batch_size, width=config.width, heads=config.num_heads,
        layers=config.num_layers, vocab=config.vocab_size,
    )  # fmt: skip
    return Target(
        spec=spec,
        kind="laboratory",
        make=make,
        loss_of=batch_loss,
        shape={**said(config), "batch_size": batch_size},
        numbers=numbers,
        standard=standard,
    )


def _factory(spec: Spec) -> Target:
    refuse(spec, "a model of your own has the shape that its function gives it")
    return Target(
        spec=spec,
        kind="factory",
        make=factory_called(spec.model),
        loss_of=lambda model, given: loss_in(output_for(model, given)),
    )


def refuse(spec: Spec, why: str, options: tuple[str, ...] = ()) -> None:
    """Refuse options of shape that have no meaning for a kind of model.

    Args:
        spec: what was given.
        why: the reason, as a clause.
        options: fields of `Spec` to refuse; all of shape if empty.

    Raises:
        LedgerError: one of them was given.
    """
    for name in options or ("batch_size", "context", "attention"):
        if getattr(spec, name) is not None:
            raise LedgerError(f"--{name.replace('_', '-')} does not go with {spec.model}: {why}.")


def _check_device(name: str) -> None:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise LedgerError(f"--device {name}: there is no such kind of device.") from None
    found = torch.accelerator.current_accelerator(check_available=True)
    here = ["cpu", *([found.type] if found is not None else [])]
    if device.type not in here:
        raise LedgerError(f"--device {name}: this machine has {' and '.join(here)} alone.")


def _moved(tree: Any, device: str) -> Any:
    """`tree` with its tensors on `device`; functions and what else is opaque stay as they are."""
    if device == "cpu" or not any(True for _ in tensors_in(tree)):
        return tree
    return mapped(tree, lambda tensor: tensor.to(device))
