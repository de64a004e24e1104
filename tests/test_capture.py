"""Captured spectra are those of the tensors themselves, under the right names; nothing stays."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import floatscope as fs
from floatscope.errors import FloatscopeError, FormatError, SpectrumError
from floatscope.spectrum.capture.capture import Capture
from floatscope.spectrum.capture.records import ROLES
from floatscope.spectrum.storage import read_parquet, write_parquet

X, Y = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)), torch.zeros(6, 4)
Outputs = dict[str, list[Tensor]]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(self.a(x).relu())


class Net(nn.Module):
    """Two blocks in a list; a head that shares its weight with the first layer's transpose."""

    def __init__(self, use_reentrant: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last = nn.Linear(8, 4)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            if self.use_reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.use_reentrant)  # type: ignore[assignment]
        return self.last(x)


PATHS = ["", "first", "blocks.0", "blocks.0.a", "blocks.0.b", "blocks.1", "blocks.1.a",
         "blocks.1.b", "last"]  # fmt: skip


def loss_of(model: nn.Module, x: Tensor = X) -> Tensor:
    return F.mse_loss(model(x), Y)


def by_hand(model: nn.Module, run: Callable[[nn.Module], Any]) -> tuple[Outputs, Outputs]:
    """What each module of a copy returns, cloned, and the gradients that autograd retains."""
    model = copy.deepcopy(model)
    values: Outputs = {}
    kept: Outputs = {}

    def keep(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            values.setdefault(path, []).append(output.detach().clone())
            if output.requires_grad:
                output.retain_grad()
                kept.setdefault(path, []).append(output)

        return hook

    for path, module in model.named_modules():
        module.register_forward_hook(keep(path))
    run(model)
    gradients = {
        path: [output.grad for output in outputs if output.grad is not None]
        for path, outputs in kept.items()
    }
    return values, gradients


def spectrum(tensors: list[Tensor]) -> fs.Spectrum:
    return fs.Spectrum.sum(fs.Spectrum.of(x) for x in tensors)


def found(seen: Capture, role: Any, step: int = 0) -> dict[str, fs.Spectrum]:
    """By full name; for outputs, by module path."""
    records = seen.select(role=role, step=step)
    names = [r.module if r.name == "output" else f"{r.module}.{r.name}" for r in records]
    assert len(names) == len(set(names))
    return {name: record.spectrum for name, record in zip(names, records, strict=True)}


def missing(seen: Capture, role: str) -> dict[str, str]:
    return {f"{u.module}.{u.name}".strip("."): u.reason for u in seen.unseen if u.role == role}


def num_hooks(model: nn.Module, *tensors: Tensor) -> int:
    """Every hook on modules, parameters and tensors."""
    kinds = "_forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks".split()
    total = sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)
    for tensor in (*model.parameters(), *tensors):
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            total += len(getattr(tensor, kind) or ())
    return total


# Roles


def test_every_role_is_the_spectrum_of_its_tensor() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    values, gradients = by_hand(model, lambda m: loss_of(m).backward())
    with fs.capture(model, optimizer=optimizer) as seen:
        loss_of(model).backward()
        grads = {name: p.grad for name, p in model.named_parameters()}
        optimizer.step()
    assert found(seen, "weight") == {name: spectrum([w]) for name, w in before.items()}
    assert found(seen, "activation") == {path: spectrum(values[path]) for path in PATHS}
    assert found(seen, "activation_gradient") == {p: spectrum(gradients[p]) for p in PATHS}
    assert found(seen, "weight_gradient") == {
        n: spectrum([g]) for n, g in grads.items() if g is not None
    }
    moved = {n: p.detach().double() - before[n].double() for n, p in model.named_parameters()}
    assert found(seen, "update") == {name: spectrum([u]) for name, u in moved.items()}
    assert len(seen.records) == 3 * 12 + 2 * len(PATHS)
    assert {r.step for r in seen.records} == {0}
    assert {r.calls for r in seen.records} == {1}
    assert not seen.unseen


def test_passes_in_a_step_merge_and_weight_gradients_are_what_accumulated() -> None:
    model = Net()
    parts = X[:2], X[2:]

    def run(m: nn.Module) -> None:
        for part in parts:
            m(part).square().sum().backward()

    values, gradients = by_hand(model, run)
    with fs.capture(model) as seen:
        run(model)
    assert found(seen, "activation") == {path: spectrum(values[path]) for path in PATHS}
    assert found(seen, "activation_gradient") == {p: spectrum(gradients[p]) for p in PATHS}
    grads = {n: spectrum([p.grad]) for n, p in model.named_parameters() if p.grad is not None}
    assert found(seen, "weight_gradient") == grads
    assert {r.calls for r in seen.records if r.role != "weight"} == {2}


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputed_blocks_count_once_and_have_gradients(use_reentrant: bool) -> None:
    plain, model = Net(), Net(use_reentrant)
    values, gradients = by_hand(plain, lambda m: loss_of(m).backward())
    with fs.capture(model) as seen:
        loss_of(model).backward()
    assert found(seen, "activation") == {path: spectrum(values[path]) for path in PATHS}
    assert found(seen, "activation_gradient") == {p: spectrum(gradients[p]) for p in PATHS}
    assert {r.calls for r in seen.records} == {1}
    assert len(found(seen, "weight_gradient")) == 12
    assert not seen.unseen


def test_a_tied_weight_is_reported_once_with_its_other_names() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.embedding(ids))

    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for pattern in ("*", "head"):  # one of its owners is enough
        with fs.capture(model, optimizer=optimizer, pattern=pattern) as seen:
            optimizer.zero_grad()
            model(torch.tensor([1, 2, 2])).square().sum().backward()
            gradient = model.head.weight.grad
            optimizer.step()
        for role in ("weight", "weight_gradient", "update"):
            (record,) = seen.select(role=role)
            assert (record.module, record.name) == ("embedding", "weight")
            assert record.aliases == ("head.weight",)
        assert gradient is not None
        assert seen.total(role="weight_gradient") == spectrum([gradient])


def test_a_shared_module_merges_its_calls_under_its_first_name() -> None:
    layer = nn.Linear(8, 8)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    values, gradients = by_hand(model, lambda m: m(X).sum().backward())
    with fs.capture(model) as seen:
        model(X).sum().backward()
    (record,) = seen.select(role="activation", pattern="0")
    assert (record.calls, record.aliases) == (2, ("2",))
    assert record.spectrum == spectrum(values["0"])
    assert len(values["0"]) == 2
    assert seen.total(role="activation_gradient", pattern="0") == spectrum(gradients["0"])
    assert [r.module for r in seen.select(role="activation")] == ["0", "1", ""]


# What modules return


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Answer:
    logits: Any
    extra: Any = None


class ModelOutput(OrderedDict):  # as in Transformers
    pass


class Node:
    def __init__(self, *children: Any) -> None:
        self.children = children


pytree.register_pytree_node(Node, lambda n: ([*n.children], None), lambda c, _: Node(*c))


def test_tensors_are_found_in_nested_outputs() -> None:
    class Nested(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return {
                "list": [x, (x + 1, None)],
                "pair": Pair(x + 2, "text"),
                "answer": Answer(x + 3, {4: x + 4}),
                "out": ModelOutput(loss=x + 5),
                "node": Node(x + 6, 7),
                "ids": torch.arange(3),
                "mask": x > 0,
                "number": 1.5,
                "object": object(),
            }

    model = Nested()
    with fs.capture(model) as seen:
        model(X)
    names = {
        "output['list'][0]": 0, "output['list'][1][0]": 1, "output['pair'].left": 2,
        "output['answer'].logits": 3, "output['answer'].extra[4]": 4, "output['out']['loss']": 5,
        "output['node'][0]": 6,
    }  # fmt: skip
    got = {r.name: r.spectrum for r in seen.records}
    assert got == {name: spectrum([X + n]) for name, n in names.items()}


def test_modules_that_return_no_numbers_are_named() -> None:
    class Ids(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x.argmax(-1), "text"

    model = nn.Sequential(nn.Linear(8, 8), Ids())
    with fs.capture(model, roles="activation") as seen:
        model(X)
    assert list(found(seen, "activation")) == ["0"]
    assert missing(seen, "activation") == dict.fromkeys(
        ("", "1"), "it returned no tensor of floats"
    )


def test_what_is_changed_in_place_later_was_recorded_before() -> None:
    torch.manual_seed(0)
    inside = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8))
    outside = nn.Sequential(inside[0], nn.ReLU(), inside[2])
    values, gradients = by_hand(outside, lambda m: m(X).sum().backward())
    with fs.capture(inside, roles=("activation", "activation_gradient")) as seen:
        inside(X).sum().backward()
    assert found(seen, "activation") == {path: spectrum(v) for path, v in values.items()}
    assert found(seen, "activation_gradient") == {p: spectrum(v) for p, v in gradients.items()}
    assert values["0"][0].min() < 0
    assert not seen.unseen


def test_the_lost_gradient_of_a_view_changed_in_place_is_named() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Flatten(0), nn.ReLU(inplace=True))
    with fs.capture(model, roles=("activation", "activation_gradient")) as seen:
        model(X).sum().backward()
    assert found(seen, "activation")["1"] == found(seen, "activation")["0"]
    assert list(found(seen, "activation_gradient")) == ["2", "", "0"]
    assert "a view that was changed in place" in missing(seen, "activation_gradient")["1.output"]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_activations_are_seen_without_gradients(mode: Callable[[], Any]) -> None:
    model = Net()
    values, _ = by_hand(model, lambda m: loss_of(m))
    with fs.capture(model) as seen, mode():
        loss_of(model)
    assert found(seen, "activation") == {path: spectrum(values[path]) for path in PATHS}
    assert set(missing(seen, "activation_gradient").values()) == {"its output needs no gradient"}
    assert len(missing(seen, "weight_gradient")) == 12


def test_dtypes_are_measured_as_they_are() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        model = nn.Linear(8, 4).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with fs.capture(model, optimizer=optimizer, loss_scale=2.0**7) as seen:
            output = model(X.to(dtype))
            (output.sum() * 2.0**7).backward()
            assert model.weight.grad is not None
            gradient = model.weight.grad.clone()
            model.weight.grad /= 2.0**7
            optimizer.step()
        assert seen.total(role="activation") == spectrum([output.detach()])
        (record,) = [r for r in seen.select(role="weight_gradient") if r.name == "weight"]
        assert record.spectrum == spectrum([gradient]).scaled(-7)
        assert not seen.unseen


# What is not seen


def test_parameters_without_gradients_are_named() -> None:
    model = Net()
    model.first.requires_grad_(False)
    model.spare = nn.Linear(2, 2)  # type: ignore[assignment]
    optimizer = torch.optim.SGD(model.last.parameters(), lr=0.1)
    with fs.capture(model, optimizer=optimizer) as seen:
        for _ in range(2):
            loss_of(model).backward()
            optimizer.step()
    frozen, unused = missing(seen, "weight_gradient"), missing(seen, "activation")
    assert frozen["first.weight"] == "it is frozen: requires_grad is False"
    assert frozen["spare.bias"].startswith("no backward pass gave it a gradient")
    assert len(frozen) == 4
    assert unused == {"spare": "it was not called, or only by compiled code"}
    held_back = missing(seen, "update")
    assert set(held_back.values()) == {"the optimizer does not hold it"}
    assert len(held_back) == 12
    assert all(u.steps == (0, 1) for u in seen.unseen)
    assert len(found(seen, "weight")) == 14
    assert list(found(seen, "update")) == ["last.weight", "last.bias"]


def test_parameters_that_are_unfrozen_are_seen_from_then_on() -> None:
    model = Net()
    model.first.requires_grad_(False)
    with fs.capture(model, roles="weight_gradient") as seen:
        loss_of(model).backward()
        seen.next_step()
        model.first.requires_grad_(True)
        loss_of(model).backward()
        seen.next_step()
    assert "first.weight" not in found(seen, "weight_gradient", step=0)
    assert model.first.weight.grad is not None
    assert found(seen, "weight_gradient", 1)["first.weight"] == spectrum([model.first.weight.grad])


def test_tensors_without_plain_memory_are_named() -> None:
    model = nn.Embedding(5, 3, sparse=True)
    with fs.capture(model) as seen:
        model(torch.tensor([1, 2])).sum().backward()
    assert missing(seen, "weight_gradient") == {"weight": "its layout is torch.sparse_coo"}
    spectral = nn.Sequential(nn.Linear(8, 4, dtype=torch.complex64))
    with fs.capture(spectral) as seen:
        spectral(X.cfloat()).abs().sum().backward()
    assert missing(seen, "activation")["0.output"] == "its elements are torch.complex64"
    assert missing(seen, "weight")["0.bias"] == "its elements are torch.complex64"
    shapes = nn.Linear(8, 4, device="meta")
    optimizer = torch.optim.SGD(shapes.parameters(), lr=0.1)
    with fs.capture(shapes, optimizer=optimizer) as seen:
        shapes(X.to("meta")).sum().backward()
        optimizer.step()
    for role in ROLES:
        assert set(missing(seen, role).values()) == {"it is on the meta device"}
    layer = nn.Linear(8, 4)
    with fs.capture(layer) as seen:
        torch.func.vmap(layer)(X)
    assert "torch.func" in missing(seen, "activation")["output"]
    assert not seen.select(role="activation")


def test_lazy_parameters_are_no_error() -> None:
    model = nn.Sequential(nn.LazyLinear(4))
    with fs.capture(model) as seen:
        model(X).sum().backward()
        seen.next_step()
        model(X).sum().backward()
    assert missing(seen, "weight")["0.weight"] == "it was not initialized yet"
    assert "after the step had begun" in missing(seen, "weight_gradient")["0.weight"]
    assert len(found(seen, "weight", step=1)) == 2


# Patterns, roles and errors


def test_patterns_choose_modules_and_their_parameters() -> None:
    model = Net()
    for pattern, paths in (
        ("blocks.*.a", ["blocks.0.a", "blocks.1.a"]),
        (("first", "blocks.1*"), ["first", "blocks.1.a", "blocks.1.b", "blocks.1"]),
        ("", [""]),
    ):
        with fs.capture(model, pattern=pattern) as seen:
            loss_of(model).backward()
        assert [r.module for r in seen.select(role="activation")] == paths
        owners = [path for path in paths if path and not path[-1].isdigit()]
        for role in ("weight", "weight_gradient"):
            assert {r.module for r in seen.select(role=role)} == set(owners)


@pytest.mark.parametrize("role", ROLES)
def test_one_role_alone(role: Any) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fs.capture(model, roles=role, optimizer=optimizer) as seen:
        for _ in range(2):
            loss_of(model).backward()
            optimizer.step()
    assert {r.role for r in seen.records} == {role}
    assert {r.step for r in seen.records} == {0, 1}
    assert not seen.unseen


def test_a_model_without_parameters_has_activations() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Softmax(-1))
    with fs.capture(model) as seen:
        model(X)
    assert found(seen, "activation")["0"] == spectrum([X.relu()])


def test_weights_alone_need_nothing_to_happen() -> None:
    with fs.capture(Net(), roles="weight") as seen:
        pass
    assert len(seen.records) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pattern": "block.*"}, r"no module's path matches 'block.\*'. Did you mean 'blocks.\*"),
        ({"pattern": "blocks.*.c"}, r"Did you mean 'blocks.\*.[ab]'"),
        ({"pattern": ["first", "lost"]}, "matches 'lost'. Did you mean 'last'?"),
        ({"pattern": "zzzzzz"}, r"Among its modules are 'first', 'blocks', 'blocks.\*'"),
        ({"pattern": "blocks"}, "nothing to watch: what 'blocks' matches has no activation"),
        ({"roles": "weights"}, "unknown role 'weights'. Did you mean 'weight'?"),
        ({"roles": ()}, "nothing to watch"),
        ({"roles": "update"}, "pass it as optimizer="),
        ({"every": 0}, "every must be a whole number from 1 on, not 0"),
        ({"first_step": -1}, "first_step must be a whole number"),
        ({"loss_scale": 0.0}, "loss_scale must be a positive number, not 0.0"),
        ({"loss_scale": "fp16"}, "not str"),
        ({"optimizer": object()}, "object is none"),
    ],
)
def test_errors_say_what_to_do(arguments: dict[str, Any], message: str) -> None:
    model = Net()
    with pytest.raises(SpectrumError, match=message), fs.capture(model, **arguments):
        pass
    assert num_hooks(model) == 0


def test_more_errors() -> None:
    model, other = Net(), Net()
    stranger = torch.optim.SGD(other.parameters())
    with pytest.raises(SpectrumError, match="holds no parameter of this model"):
        fs.capture(model, optimizer=stranger).__enter__()
    with pytest.raises(FormatError, match="predicts casts to float formats"):
        fs.capture(model, storage=["int8"]).__enter__()
    with pytest.raises(SpectrumError, match="not function"):
        fs.capture(loss_of).__enter__()  # type: ignore[arg-type]
    with pytest.raises(SpectrumError, match="This model has no submodules"):
        fs.capture(nn.Linear(2, 2), pattern="0").__enter__()
    with fs.capture(model) as seen, pytest.raises(SpectrumError, match="unknown role"):
        seen.total(role="weights")  # type: ignore[arg-type]


# Results


def test_results_can_be_chosen_summed_and_stored(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fs.capture(model, optimizer=optimizer) as seen:
        for _ in range(2):
            loss_of(model).backward()
            optimizer.step()
        model(X)
        assert {r.step for r in seen.records} == {0, 1, 2}  # also of the step under way
        assert not seen.select(step=2, role="update")
    chosen = seen.select(step=1, role="weight", pattern="blocks.0.*")
    assert [r.name for r in chosen] == ["weight", "bias"] * 2
    assert seen.total(step=1, role="weight", pattern="blocks.0.*") == fs.Spectrum.sum(
        r.spectrum for r in chosen
    )
    assert seen.total(pattern="nowhere") == fs.Spectrum.empty()
    write_parquet(tmp_path / "all.parquet", seen.rows())
    stored = read_parquet(tmp_path / "all.parquet")
    assert [row["module"] for row, _ in stored] == [r.module for r in seen.records]
    assert [held for _, held in stored] == [r.spectrum for r in seen.records]
    write_parquet(tmp_path / "updates.parquet", seen.rows(role="update", step=0))
    row, _ = read_parquet(tmp_path / "updates.parquet")[0]
    update = seen.select(role="update")[0].update
    assert update is not None
    assert row == {
        "step": 0, "module": "first", "role": "update", "name": "weight", "calls": 1, "aliases": "",
        "stuck": 0, "stuck_of": update.stuck.of, "moved": update.moved,
        "swallowed_bf16": update.swallowed["bf16"].count,
        "swallowed_fp16": update.swallowed["fp16"].count,
    }  # fmt: skip


# Leaving no trace


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_all_hooks_are_removed(error: type[BaseException] | None) -> None:
    model = Net(use_reentrant=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    output = torch.zeros(())

    def run() -> Capture:
        nonlocal output
        with fs.capture(model, optimizer=optimizer) as seen:
            output = model(X)
            assert num_hooks(model, output) >= len(PATHS) + 12 + 1
            if error:
                raise error
            output.sum().backward()
            optimizer.step()
        return seen

    if error:
        with pytest.raises(error):
            run()
        output.sum().backward()  # the graph outlives the context
    else:
        assert run().records
    assert num_hooks(model, output) == 0
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_an_output_that_is_a_parameter_keeps_no_hook() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self) -> Tensor:
            return self.w

    model = Bare()
    with fs.capture(model) as seen:
        for step in range(3):
            (model() * 2).sum().backward()
            assert seen.select(step=step, role="activation_gradient")[0].calls == 1
            seen.next_step()
    assert num_hooks(model) == 0


def test_copies_of_a_watched_model_are_not_watched() -> None:
    model = Net()
    with fs.capture(model) as seen:
        output = model(X)
        copied = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save((model, output), file)
        file.seek(0)
        stored, _ = torch.load(file, weights_only=False)
        for other in (copied, stored):
            loss_of(other).backward()
        output.sum().backward()
    assert {r.calls for r in seen.records} == {1}
    assert torch.equal(copied(X), output)


def test_captures_nest_and_repeat() -> None:
    model = Net()
    with fs.capture(model) as outer:
        with fs.capture(model, pattern="first") as inner:
            loss_of(model).backward()
        seen = {
            (r.role, r.module, r.name): r.spectrum for r in outer.records if r.module == "first"
        }
        assert {(r.role, r.module, r.name): r.spectrum for r in inner.records} == seen
        model.zero_grad()
        loss_of(model).backward()
    assert {r.calls for r in outer.select(role="activation")} == {2}
    assert {r.calls for r in inner.select(role="activation")} == {1}
    with fs.capture(model) as again:
        model.zero_grad()
        loss_of(model).backward()
    assert found(again, "weight_gradient") == found(outer, "weight_gradient")
    assert num_hooks(model) == 0


def test_what_watches_operations_does_not_see_the_capture() -> None:
    model = Net()
    with FlopCounterMode(display=False) as plain:
        loss_of(model).backward()
    operations: list[Any] = []

    class Log(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            operations.append(func)
            return func(*args, **(kwargs or {}))

    model.zero_grad()
    with Log():
        loss_of(model).backward()
    model.zero_grad()
    without, operations = operations, []
    with fs.capture(model), FlopCounterMode(display=False) as captured, Log():
        loss_of(model).backward()
    assert captured.get_flop_counts() == plain.get_flop_counts()
    assert operations == without


def test_an_error_in_the_model_stays_what_it_is() -> None:
    model = Net()
    with pytest.raises(RuntimeError, match="shapes"), fs.capture(model):
        model(X[:, :3])
    assert num_hooks(model) == 0
    assert issubclass(SpectrumError, FloatscopeError)
