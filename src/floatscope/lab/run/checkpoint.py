"""Everything a run needs to go on bit for bit, in one safetensors file that is whole or absent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from floatscope.errors import StudyError
from floatscope.files import write_atomically
from floatscope.recipes.train_step import TrainStep


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is, and which journal belongs to that."""

    run_id: str
    step: int
    """Steps done; the next step has this number."""
    journal_bytes: int
    journal_sha256: str


def save(
    path: Path, progress: Progress, model: nn.Module, optimizer: Optimizer, step: TrainStep
) -> None:
    """Write model, optimizer, loss scaler and Torch's generator to `path`, atomically."""
    tensors = {f"model/{name}": t.detach() for name, t in model.state_dict().items()}
    tensors["generator/torch"] = torch.get_rng_state()
    plain: dict[str, Any] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            name = f"optimizer/{index}/{key}"
            if isinstance(value, Tensor):
                tensors[name] = value
            else:
                plain[name] = value
    state = _without_tensors(step.state_dict(), "step", tensors)
    tensors = {name: t.contiguous() for name, t in tensors.items()}
    metadata = {
        "progress": json.dumps(progress.__dict__),
        "scaler": json.dumps(state),
        "optimizer": json.dumps(plain),
        "sha256": digest(tensors),
    }
    write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata))


def load(
    path: Path, run_id: str, model: nn.Module, optimizer: Optimizer, step: TrainStep
) -> Progress:
    """Restore what `save` wrote.

    Raises:
        StudyError: the file is damaged, or belongs to another run.
    """
    tensors, metadata = _read(path)
    progress = Progress(**json.loads(metadata["progress"]))
    if progress.run_id != run_id:
        raise StudyError(
            f"{path} belongs to another run ({progress.run_id}, not {run_id}). Move it away to "
            "train this run from its first step."
        )
    model.load_state_dict(_under("model/", tensors))
    states: dict[int, dict[str, Any]] = {}
    plain = json.loads(metadata["optimizer"])
    for name, value in {**_under("optimizer/", tensors), **_under("optimizer/", plain)}.items():
        index, key = name.split("/", 1)
        states.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})
    step.load_state_dict(_with_tensors(json.loads(metadata["scaler"]), tensors))
    torch.set_rng_state(tensors["generator/torch"])
    return progress


_TENSOR = "tensor in this file"


def _without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Nested state with every tensor moved to `tensors` and its name left in its place."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {_TENSOR: name}
    if isinstance(value, Mapping):
        return {k: _without_tensors(v, f"{name}/{k}", tensors) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_tensors(v, f"{name}/{i}", tensors) for i, v in enumerate(value)]
    return value


def _with_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {k: _with_tensors(v, tensors) for k, v in value.items()}
    return [_with_tensors(v, tensors) for v in value] if isinstance(value, list) else value


def save_weights(path: Path, model: nn.Module, metadata: dict[str, str]) -> None:
    """Write the weights alone, atomically; shared weights once."""
    tensors = {name: p.detach().contiguous() for name, p in model.named_parameters()}
    write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata))


def opened(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file.

    Raises:
        SafetensorError, OSError: it is damaged, or cannot be read.
    """
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, file.metadata() or {}


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        tensors, metadata = opened(path)
    except (SafetensorError, OSError) as error:
        raise _damaged(path, str(error)) from None
    if metadata.get("sha256") != digest(tensors):
        raise _damaged(path, "its checksum does not match")
    return tensors, metadata


def _damaged(path: Path, why: str) -> StudyError:
    return StudyError(
        f"the checkpoint {path} is damaged: {why}. Move it away to train this run again from its "
        "first step; all other runs are unaffected."
    )


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A checksum of tensors' names and bytes."""
    sha256 = hashlib.sha256()
    for name in sorted(tensors):
        sha256.update(name.encode() + b"\0")
        sha256.update(tensors[name].cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha256.hexdigest()


def _under(prefix: str, entries: Mapping[str, Any]) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in entries.items() if k.startswith(prefix)}
