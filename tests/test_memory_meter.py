"""The meter and the trace on modules that are not ours: sharing, exceptions, recomputation."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from floatscope.errors import LedgerError, RecipeError
from floatscope.memory import Category, Ledger, Lifetime, Measurement, Stage, Workload, measure
from floatscope.memory.attribution import outer_name
from floatscope.memory.device import DeviceMeter
from floatscope.memory.tape import Allocation, Place, Tape
from floatscope.memory.trace import trace
from tests.memory_workloads import refereed, small_batch


def mse(model: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def workload(model: Callable[[], nn.Module], **options: Any) -> Workload:
    return Workload(**({"model": model, "batch": small_batch, "loss_of": mse} | options))


def both(job: Workload, *, peaks: bool = True) -> Measurement:
    """The measurement, which the trace and the allocator's events must confirm.

    The allocator's peaks include what a kernel needs while it runs; `peaks=False` skips them.
    """
    measured, events = refereed(job)
    for stage in measured.stages:
        alive, most = events[stage.stage]
        assert abs(stage.live.total - alive) <= 64
        assert not peaks or abs(stage.peak.total - most) <= 64
    traced = trace(job)
    assert traced.saved == measured.saved
    assert traced.stages == measured.stages
    return measured


def saved_by(measured: Measurement) -> dict[tuple[str, ...], int]:
    parts = measured.saved.group("module", "operation").items()
    return {key: part.total for key, part in parts}


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Any:
    yield
    assert not _get_current_dispatch_mode_stack()
    x = torch.ones(1, requires_grad=True)
    assert (x * x).grad_fn._raw_saved_self is not None  # type: ignore[union-attr]


# Sharing


class Tied(nn.Module):
    """An embedding tied to its head, a buffer that is a view, and a tensor nobody registered."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("part", torch.ones(20)[:5])
        self.constant = torch.ones(7)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embedding(ids)) * self.part.sum() + self.constant[0]


def test_tied_and_shared_storages_are_counted_once() -> None:
    ids = lambda: torch.randint(0, 10, (6,))  # noqa: E731
    job = workload(Tied, batch=ids, loss_of=lambda m, b: F.cross_entropy(m(b), b))
    measured = both(job)
    built = measured[Stage.BUILD].live.by_category()
    assert built == {Category.PARAMETERS: 320, Category.BUFFERS: 80 + 28, Category.INPUT: 48}
    assert measured[Stage.BACKWARD].live.by_category()[Category.GRADIENTS] == 320
    terms = {row.term for row in measured[Stage.BUILD].live}
    assert {"weight", "part", "constant (attribute)", "batch"} == terms


def test_a_tensor_saved_twice_or_by_views_is_counted_once_and_belongs_to_the_first() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 6), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            return self.second(y[:, :3]) * self.second(y.view(4, 2, 3)[:, 1])

    measured = both(workload(Model))
    first = measured.saved.where(module="second", operation="linear")
    assert (first.total, sum(row.count for row in first)) == (4 * 6 * 4, 1)


def test_parameters_and_buffers_are_never_saved_rows() -> None:
    measured = both(workload(lambda: nn.Linear(8, 3)))
    assert saved_by(measured) == {
        ("", "linear"): 4 * 8 * 4, ("(loss)", "mse_loss"): 2 * 4 * 3 * 4,
    }  # fmt: skip
    assert {row.lifetime for row in measured.saved} == {Lifetime.SAVED}


# In place, recomputed, custom


def test_operations_in_place() -> None:
    model = lambda: nn.Sequential(nn.Linear(8, 3), nn.ReLU(inplace=True))  # noqa: E731
    measured = both(workload(model))
    assert measured.saved.where(operation="relu").total == 48


def test_changing_a_saved_tensor_is_still_an_error() -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x).exp()
            y.add_(1)
            return y

    for run in (measure, trace):
        with pytest.raises(RuntimeError, match=r"modified by an inplace.*fp32.*\(4, 3\)"):
            run(workload(Wrong))


class Blocks(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8), nn.Tanh())
        self.out = nn.Linear(8, 3)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        if self.reentrant is None:
            return self.out(self.block(x))
        # The generator's state, which no operation makes, would be 5056 bytes a block unseen.
        y = checkpoint(self.block, x, use_reentrant=self.reentrant, preserve_rng_state=False)
        assert isinstance(y, Tensor)
        return self.out(y)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_keeps_the_blocks_inputs_alone(*, reentrant: bool) -> None:
    plain = saved_by(both(workload(lambda: Blocks(None))))
    assert plain["block.1", "tanh"] == 4 * 32 * 4
    kept = saved_by(both(workload(lambda: Blocks(reentrant))))
    assert kept == {
        ("", "custom function"): 4 * 8 * 4,
        ("out", "linear"): 4 * 8 * 4,
        ("(loss)", "mse_loss"): 2 * 48,
    }


def test_recomputation_belongs_to_the_modules_that_recompute() -> None:
    model = lambda: Blocks(reentrant=False)  # noqa: E731
    measured = measure(workload(model, optimizer=lambda m: SGD(m.parameters(), lr=0.1)))
    peak = measured[Stage.BACKWARD].peak
    assert any(row.module == "block.1" for row in peak)


class Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.kept = x.exp()
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * ctx.kept


class InNumpy(torch.autograd.Function):
    """A kernel that Torch does not see: it reads memory and hands out memory of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.from_numpy(np.exp(x.detach().numpy()))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * ctx.saved_tensors[0]


@torch.library.custom_op("floatscope_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


twice.register_autograd(lambda ctx, gradient: gradient * 2)


class Ends(nn.Module):
    """A layer, and what a user does with its output."""

    def __init__(self, end: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.end = nn.Linear(8, 3), end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.layer(x))


@pytest.mark.parametrize(
    ("end", "saved", "reason"),
    [
        (InNumpy.apply, ("", "custom function"), "looks into the memory of a tensor"),
        (twice, ("(loss)", "mse_loss"), "calls an operation of its own that fake tensors do not"),
    ],
)
def test_kernels_of_ones_own_are_measured_and_the_trace_says_why_it_cannot(
    end: Callable[[Tensor], Any], saved: tuple[str, str], reason: str
) -> None:
    job = workload(lambda: Ends(end))
    measured = measure(job)
    assert saved_by(measured)[saved] >= 48
    assert all(stage.live.unexplained == 0 for stage in measured.stages)
    with pytest.raises(LedgerError, match=rf"the workload {reason}.*stage forward.*Measure it"):
        trace(job)


def test_what_a_custom_function_keeps_outside_autograd_is_unexplained_and_says_where() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return Keeps.apply(self.layer(x))

    measured = both(workload(Model))
    assert saved_by(measured)["", "custom function"] == 48
    rest = measured[Stage.FORWARD].live.where(category=Category.UNEXPLAINED)
    assert [(row.bytes, row.operation, row.lifetime) for row in rest] == [
        (48, "exp", Lifetime.HELD)
    ]
    assert "custom function" in rest.rows[0].reason
    assert measured[Stage.BACKWARD].live.unexplained == 0


def test_an_output_that_the_caller_keeps_is_named() -> None:
    kept = []

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        kept.append(model(batch[0]))
        return F.cross_entropy(kept[-1], batch[1].argmax(dim=1))

    measured = measure(workload(lambda: nn.Linear(8, 3), loss_of=loss_of))
    row = next(r for r in measured[Stage.BACKWARD].live if r.lifetime is Lifetime.HELD)
    assert (row.term, row.category, row.bytes) == ("result of linear", Category.LOSS, 48)


# Optimizers and other kinds of tensors


def test_other_optimizers_have_their_rows() -> None:
    def momentum(model: nn.Module) -> SGD:
        return SGD(model.parameters(), lr=0.1, momentum=0.9)

    n = 8 * 3 + 3
    alive = both(workload(lambda: nn.Linear(8, 3), optimizer=momentum))
    assert alive[Stage.OPTIMIZER].live.by_category()[Category.FIRST_MOMENT] == 4 * n

    def amsgrad(model: nn.Module) -> AdamW:
        return AdamW(model.parameters(), amsgrad=True, foreach=True)

    ledger = both(workload(lambda: nn.Linear(8, 3), optimizer=amsgrad))[Stage.OPTIMIZER].live
    assert ledger.by_category()[Category.OPTIMIZER] == 4 * n + 2 * 4
    assert ledger.where(term="weight: max_exp_avg_sq").total == 4 * 24


def test_a_network_with_convolutions_and_norms() -> None:
    def model() -> nn.Module:
        layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        return nn.Sequential(*layers, nn.Dropout(0.1), nn.Flatten(), nn.Linear(36, 3))

    job = workload(model, batch=lambda: (torch.randn(4, 3, 8, 8), torch.randn(4, 3)))
    measured = both(job, peaks=False)
    assert measured[Stage.FORWARD].live.unexplained == 0
    assert saved_by(measured)["3", "max_pool2d"] == 4 * 4 * 3 * 3 * 8


def test_sparse_gradients_are_measured_and_the_trace_says_that_it_cannot() -> None:
    def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
        return model(ids).sum()

    job = workload(
        lambda: nn.Embedding(10, 8, sparse=True),
        batch=lambda: torch.randint(0, 10, (6,)),
        loss_of=loss_of,
        optimizer=lambda m: SGD(m.parameters(), lr=0.1),
    )
    gradients = measure(job)[Stage.BACKWARD].live.where(category=Category.GRADIENTS)
    assert gradients.total == 6 * 8 + 6 * 8 * 4
    assert any("sparse_coo" in note for note in trace(job).notes)


def test_the_workspace_of_a_fused_lstm_is_measured_and_the_trace_says_that_it_cannot() -> None:
    job = workload(lambda: nn.LSTM(8, 3), loss_of=lambda m, b: F.mse_loss(m(b[0])[0], b[1]))
    assert measure(job).saved.where(dtype="uint8").total > 0
    assert any("workspace" in note for note in trace(job).notes)


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.soft_margin_loss])
def test_losses_that_keep_their_unreduced_storage(loss: Any) -> None:
    both(workload(lambda: nn.Linear(8, 3), loss_of=lambda m, b: loss(m(b[0]), b[1])))


def test_a_storage_resized_without_an_operation_is_noticed() -> None:
    class Frees(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 3)
            self.register_buffer("scratch", torch.ones(1000))

        def forward(self, x: Tensor) -> Tensor:
            assert isinstance(self.scratch, Tensor)
            self.scratch.untyped_storage().resize_(0)
            return self.layer(x)

    measured = measure(workload(Frees))
    assert measured[Stage.BUILD].live.by_category()[Category.BUFFERS] == 4000
    assert Category.BUFFERS not in measured[Stage.FORWARD].live.by_category()


# What is handed over, and what raises


def test_a_model_that_exists_already() -> None:
    model, batch = nn.Linear(8, 3), small_batch()
    before = model.weight.detach().clone()
    job = workload(lambda: model, batch=lambda: batch)
    traced = trace(job)
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None
    measured = measure(job)
    assert not torch.equal(model.weight, before)
    assert traced.saved == measured.saved
    assert [s.live for s in traced.stages] == [s.live for s in measured.stages]


class Raises(nn.Module):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.where = where

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if self.where == "forward":
            raise ValueError("on purpose")
        if self.where == "backward":
            y.register_hook(self._raise)
        return y

    def _raise(self, gradient: Tensor) -> None:
        raise ValueError("on purpose")


@pytest.mark.parametrize("run", [measure, trace])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_step_that_raises_leaves_nothing_behind(run: Any, where: str) -> None:
    model = Raises(where)
    with pytest.raises(ValueError, match="on purpose") as caught:
        run(workload(lambda: model))
    assert caught.value.__notes__[0].startswith(f"Raised in the stage {where}; tensors held ")
    assert not model._forward_hooks
    assert not model.layer._forward_pre_hooks
    x = torch.ones(3, requires_grad=True)
    (x * x).sum().backward()
    assert torch.equal(x.grad, 2 * x)  # type: ignore[arg-type]


def test_code_that_reads_a_value_cannot_be_traced() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            return y * 2 if y.sum() > 0 else y

    with pytest.raises(LedgerError, match=r"reads the value of a tensor.*stage forward.*Measure"):
        trace(workload(Reads))
    assert measure(workload(Reads)).saved.total > 0


def test_devices_that_are_not_here_are_refused() -> None:
    with pytest.raises(LedgerError, match="meta device"):
        trace(workload(lambda: nn.Linear(8, 3, device="meta")))
    if not torch.accelerator.is_available():
        with pytest.raises(LedgerError, match="not linked with support for cuda"):
            trace(workload(lambda: nn.Linear(8, 3, device="cuda")))
        with pytest.raises(LedgerError, match="no cuda accelerator"):
            DeviceMeter(torch.device("cuda"))
    with pytest.raises(LedgerError, match="no cpu accelerator"):
        DeviceMeter(torch.device("cpu"))


def test_bad_workloads_are_refused() -> None:
    with pytest.raises(RecipeError, match="unknown recipe"):
        measure(workload(lambda: nn.Linear(8, 3), recipe="bf17"))
    with pytest.raises(RecipeError, match="scalar"):
        measure(workload(lambda: nn.Linear(8, 3), loss_of=lambda m, b: m(b[0])))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile's own imports
def test_compiled_code() -> None:
    """It runs uncompiled and says so; where it insists, it is refused."""
    with pytest.raises(LedgerError, match=r"stage forward the workload insists on compiled code"):
        measure(workload(lambda: torch.compile(nn.Linear(8, 3), fullgraph=True)))  # type: ignore[arg-type,return-value]
    with torch.compiler.set_stance("force_eager"):
        measured = measure(workload(lambda: torch.compile(nn.Linear(8, 3))))  # type: ignore[arg-type,return-value]
    assert any("uncompiled" in note for note in measured.notes)
    assert measured.saved.total == 4 * 8 * 4 + 2 * 48


def test_a_step_that_loss_scaling_skips_is_noted() -> None:
    def overflows(model: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(model(batch[0]) * 1e30, batch[1])

    measured = measure(workload(lambda: nn.Linear(8, 3), loss_of=overflows, recipe="fp16-mixed"))
    assert any("skipped the step" in note for note in measured.notes)
    assert Category.FIRST_MOMENT not in measured[Stage.OPTIMIZER].live.by_category()


# Records


def test_a_measurement_is_plain_json() -> None:
    measured = measure(workload(lambda: nn.Linear(8, 3)))
    data = json.loads(json.dumps(measured.to_dict()))
    assert [stage["stage"] for stage in data["stages"]] == list(Stage)
    assert Ledger.from_dict(data["saved"]) == measured.saved
    assert measured.peak.peak.total == max(s.peak.total for s in measured.stages)


def test_the_tape_replays_any_moment() -> None:
    tape = Tape()
    allocation = Allocation(dtype="fp32", place=Place("", ""), stage=Stage.BUILD)
    first, second = tape.allocate(allocation, 10), tape.allocate(allocation, 5)
    tape.resize(first, 30)
    tape.free(second)
    tape.free(first)
    assert [sum(tape.live_at(k).values()) for k in range(tape.position + 1)] == [
        0, 10, 15, 35, 30, 0,
    ]  # fmt: skip
    assert tape.peak(0, 5) == (35, 3)
    assert tape.peak(3, 5) == (35, 3)
    assert tape.peak(4, 5) == (30, 4)
    assert tape.live_at(3) == {first: 30, second: 5}


def test_names_of_functions() -> None:
    names = [
        "__rmul__",
        "__matmul__",
        "mul_",
        "rms_norm",
        "relu",
        "__rsub__",
        "_softmax",
        "__iadd__",
    ]
    expected = ["mul", "matmul", "mul", "rms_norm", "relu", "sub", "softmax", "iadd"]
    assert [outer_name(name) for name in names] == expected
