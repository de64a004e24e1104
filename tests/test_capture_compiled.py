"""Compiled models: the same bits, weights and gradients as ever, and outputs at the boundary."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import floatscope as fs
from tests.test_capture import PATHS, Net, found, loss_of, missing, num_hooks

Compile = Callable[[Net, str], Any]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        # Dynamo asks inputs of a compiled submodule for .grad, with or without a capture.
        warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
        yield
    torch._dynamo.reset()


def whole(model: Net, backend: str) -> Any:
    return torch.compile(model, backend=backend)


def one_graph(model: Net, backend: str) -> Any:
    return torch.compile(model, backend=backend, fullgraph=True)


def in_place(model: Net, backend: str) -> Any:
    model.compile(backend=backend)
    return model


def parts(model: Net, backend: str) -> Any:
    for i, block in enumerate(model.blocks):
        model.blocks[i] = torch.compile(block, backend=backend)  # type: ignore[assignment]
    return model


def parts_in_place(model: Net, backend: str) -> Any:
    for block in model.blocks:
        block.compile(backend=backend)
    return model


def train(make: Compile, how: str, first: int = 0, backend: str = "aot_eager") -> tuple[Any, Any]:
    """Four steps, those from `first` on captured, or none; then two more."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = make(Net(), backend)
    target = model
    if how == "the module behind it":
        target = getattr(model, "_orig_mod", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()

    run(first)
    context: Any = nullcontext() if how == "plain" else fs.capture(target, optimizer=optimizer)
    with context as seen:
        run(4 - first)
    run(2)
    assert num_hooks(model) == 0
    return seen, [p.detach().numpy().tobytes() for p in model.parameters()]


AT_PARTS = ["", "first", "blocks.0", "blocks.1", "last"]


@pytest.mark.parametrize("first", [0, 2], ids=["compiled under capture", "compiled before"])
@pytest.mark.parametrize(
    ("make", "boundary"),
    [
        (whole, [""]),
        (one_graph, [""]),
        (in_place, [""]),
        (parts, AT_PARTS),
        (parts_in_place, AT_PARTS),
    ],
)
def test_compiled_models(make: Compile, boundary: list[str], first: int) -> None:
    _, plain = train(make, "plain", first)
    seen, captured = train(make, "captured", first)
    eager, _ = train(lambda model, _: model, "captured", first)
    assert captured == plain
    for role in ("weight", "weight_gradient", "update"):
        assert set(found(seen, role)) == set(found(eager, role))
        assert len(found(seen, role)) == 12
    assert found(seen, "weight") == found(eager, "weight")
    for role in ("activation", "activation_gradient"):
        everything = found(eager, role)
        assert found(seen, role) == {path: everything[path] for path in boundary}
        reasons = missing(seen, role)
        assert set(reasons) == set(PATHS) - set(boundary)
        part = "the model" if len(boundary) == 1 else "'blocks.0'"
        why = f"it is compiled as a part of {part}, and compiled code calls no hooks"
        assert reasons["blocks.0.a"] == why
    assert found(seen, "weight_gradient") == found(eager, "weight_gradient")
    assert found(seen, "update") == found(eager, "update")


@pytest.mark.parametrize("first", [0, 2])
def test_a_module_that_is_compiled_elsewhere(first: int) -> None:
    """Its hooks are traced away: weights are seen, outputs are not, and the result says so."""
    _, plain = train(one_graph, "plain", first)
    seen, captured = train(one_graph, "the module behind it", first)
    assert captured == plain
    assert not seen.select(role="activation")
    reason = "it was not called, or only by compiled code"
    assert missing(seen, "activation") == dict.fromkeys(PATHS, reason)
    for role in ("weight", "weight_gradient", "update"):
        assert len(found(seen, role)) == 12


def test_hooks_leave_no_trace_in_graphs() -> None:
    graphs: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        calls = (node for node in graph.graph.nodes if node.op != "placeholder")
        graphs.append([f"{node.op} {node.target}" for node in calls])
        return graph.forward

    model = Net()
    torch.compile(model, backend=backend, fullgraph=True)(torch.ones(6, 8))
    torch._dynamo.reset()
    with fs.capture(model):
        torch.compile(model, backend=backend, fullgraph=True)(torch.ones(6, 8))
    assert len(graphs) == 2
    assert graphs[0] == graphs[1]
    assert len(graphs[0]) > 8


def test_nested_captures_of_a_module_compiled_in_place() -> None:
    model = Net()
    model.compile(backend="eager")
    compiled = model._compiled_call_impl
    with fs.capture(model) as outer:
        with fs.capture(model) as inner:
            loss_of(model)
        loss_of(model)
        loss_of(copy.deepcopy(model))  # is not watched
    assert inner.select(role="activation")[0].calls == 1
    assert outer.select(role="activation")[0].calls == 2
    assert model._compiled_call_impl is compiled


def test_compiled_autograd_calls_no_hooks() -> None:
    from torch._dynamo import compiled_autograd

    model = nn.Linear(8, 4)
    with (
        fs.capture(model) as seen,
        compiled_autograd._enable(torch.compile(backend="eager")),
    ):
        loss_of(model).backward()
    assert list(found(seen, "activation")) == [""]
    assert "compiled autograd" in missing(seen, "weight_gradient")["weight"]


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")
@pytest.mark.exhaustive
def test_inductor() -> None:
    _, plain = train(parts, "plain", backend="inductor")
    seen, captured = train(parts, "captured", backend="inductor")
    assert captured == plain
    assert set(found(seen, "activation")) == set(AT_PARTS)
    assert len(found(seen, "weight_gradient")) == 12
