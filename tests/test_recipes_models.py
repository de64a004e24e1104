"""Recipes on models that know nothing of them: how many products were converted, and what was left.

Counts are written out for each model. Sixteen-bit products and what a recipe leaves in sixteen bits
are emulated, so that the counts are the same on every processor.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from floatscope.errors import RecipeError
from floatscope.recipes import CATALOGUE, Recipe
from floatscope.recipes.compute import compute
from floatscope.recipes.formats_of import Kept, Operand, Operands
from floatscope.recipes.report import Memory, Report
from tests.memory_architectures import HUGGING_FACE, ids_and_labels, images_and_labels

LossOf = Callable[[nn.Module], Tensor]
Made = tuple[nn.Module, LossOf]

# Gradients have another format than what is forward, so a product taken for another one shows.
UNLIKE = Operands(
    activation=Operand(format="fp8-tensor"),
    weight=Operand(format="mxfp8-e4m3"),
    gradient=Operand(format="fp8-tensor", element="e5m2"),
)


def everywhere(operands: Operands = UNLIKE, products: str = "bf16", *names: str) -> Recipe:
    """Without a head that is kept; weights may be, by name."""
    return Recipe(
        name="test", products=products, operands=operands, summary="", source="",  # type: ignore[arg-type]
        kept=Kept(head=False, names=names),
    )  # fmt: skip


def alike(format: str, **how: Any) -> Operands:
    operand = Operand(format=format, **how)
    return Operands(activation=operand, weight=operand, gradient=operand)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def run(
    recipe: Recipe,
    model: nn.Module,
    loss_of: LossOf,
    backend: str = "emulated",
    memory: Memory | None = None,
) -> tuple[dict[str, Tensor], Report]:
    """The gradients of one step, and what was converted; backward runs outside."""
    model.zero_grad()
    with compute(recipe, model, backend, memory) as report:
        loss = loss_of(model)
    loss.backward()
    return gradients(model), report or Report()


def kinds(report: Report) -> dict[str, int]:
    found: Counter[str] = Counter()
    for (_, kind), number in report.converted.items():
        found[kind] += number
    return dict(found)


def three(forward: int, input_gradient: int, weight_gradient: int) -> dict[str, int]:
    named = {"forward": forward, "input_gradient": input_gradient}
    return {k: n for k, n in {**named, "weight_gradient": weight_gradient}.items() if n}


def flat(found: dict[str, Tensor]) -> Tensor:
    return torch.cat([g.double().flatten() for g in found.values()])


def same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert torch.equal(gradient, expected[name]), name


# The models


def hugging_face(name: str, **changes: Any) -> Made:
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    kind, config_kind, values = HUGGING_FACE[name]
    config = getattr(transformers, config_kind)(**{**values, **changes})
    model = getattr(transformers, kind)(config).train()
    batch = images_and_labels() if name == "ViT" else ids_and_labels()
    return model, lambda m: m(**batch).loss


WITHOUT_DROPOUT = {
    "GPT-2": {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    # With a rectifier of which one element flips, two orders of a sum differ by a percent.
    "T5": {"dropout_rate": 0.0, "feed_forward_proj": "gelu"},
}


def mlp() -> Made:
    layers = (
        nn.Linear(40, 24),
        nn.GELU(),
        nn.Linear(24, 24),
        nn.ReLU(inplace=True),
        nn.Linear(24, 5),
    )
    x = torch.randn(12, 40)
    return nn.Sequential(*layers), lambda m: m(x).float().square().mean()


def cnn() -> Made:
    """With a grouped convolution, which stays, and a normalized one."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8), weight_norm(nn.Conv2d(8, 16, 1)), nn.ReLU(),
        nn.ConvTranspose2d(16, 4, 2), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip
    x, y = torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))
    return model, lambda m: F.cross_entropy(m(x).float(), y)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 16)
        self.recurrent = kind(16, 24, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(48, 30)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.recurrent(self.table(ids))[0])


def recurrent(kind: type[nn.RNNBase]) -> Made:
    ids = torch.randint(0, 30, (3, 5))
    return Recurrent(kind), lambda m: F.cross_entropy(m(ids).float().flatten(0, 1), ids.flatten())


def encoder_and_decoder() -> Made:
    model = nn.Transformer(16, 4, 2, 2, 32, dropout=0.0, batch_first=True)
    source, target = torch.randn(3, 7, 16), torch.randn(3, 5, 16)
    toward = torch.randn(3, 5, 16)  # the norm of a normalized output has no gradient
    return model, lambda m: (m(source, target).float() * toward).mean()


def cross_attention() -> Made:
    """Queries, keys and values differ, so one weight is multiplied in three parts."""
    model = nn.MultiheadAttention(16, 2, batch_first=True)
    q, k, v = torch.randn(2, 5, 16), torch.randn(2, 6, 16), torch.randn(2, 6, 16)
    return model, lambda m: m(q, k, v)[0].float().square().mean()


class Functional(nn.Module):
    """Products by every name there is."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in {
            "linear": (12, 8), "mm": (12, 12), "matmul": (12, 12), "addmm": (12, 8),
            "einsum": (8, 2, 8), "bmm": (2, 8, 4), "baddbmm": (2, 4, 4), "mv": (6, 8),
            "addmv": (5, 6),
        }.items():  # fmt: skip
            self.register_parameter(name, nn.Parameter(torch.randn(shape) / shape[-1] ** 0.5))

    def forward(self, x: Tensor) -> Tensor:
        h = F.linear(x, weight=self.linear)
        h = torch.addmm(torch.ones(8), torch.mm(h, self.mm) @ self.matmul, self.addmm, alpha=0.5)
        h = torch.einsum("nd,dhk->hnk", h, self.einsum)
        h = torch.baddbmm(torch.ones(2, 1, 4), torch.bmm(h, self.bmm), self.baddbmm)
        h = torch.mv(self.mv.to(h.dtype), h.reshape(-1)[:8])  # these two autocast leaves alone
        return torch.addmv(torch.ones(5, dtype=h.dtype), self.addmv.to(h.dtype), h)


def functional() -> Made:
    x = torch.randn(6, 8, requires_grad=True)
    return Functional(), lambda m: m(x).float().square().mean()


@dataclass(frozen=True)
class Expected:
    """How many products there are."""

    emulated: tuple[int, int]
    """16-bit products under fp16-mixed, forward and backward."""
    low: dict[str, int]
    """Converted under fp8-current and mxfp8."""
    nvfp4: dict[str, int]
    """And under nvfp4, which keeps the last 15 % of the weights."""
    kept: dict[str, str] = field(default_factory=dict)
    without_weight: int = 0
    left: dict[str, int] = field(default_factory=dict)


HEAD = "the head"
CASES: dict[str, tuple[Callable[[], Made], Expected]] = {
    # Four projections a block by addmm; fused attention; a tied head, which is an embedding too.
    "GPT-2": (
        partial(hugging_face, "GPT-2", **WITHOUT_DROPOUT["GPT-2"]),
        Expected(
            emulated=(2 * 4 + 2 + 1, 2 * 8 + 2 + 2),
            low=three(8, 8, 8), nvfp4=three(6, 6, 6), without_weight=2 + 2,
            kept={"transformer.wte.weight": HEAD},
        ),
    ),
    # Seven projections a block; grouped queries; a head of its own.
    "Llama": (
        partial(hugging_face, "Llama with grouped queries"),
        Expected(
            emulated=(2 * 7 + 2 + 1, 2 * 14 + 2 + 2),
            low=three(14, 14, 14), nvfp4=three(11, 11, 11), without_weight=2 + 2,
            kept={"lm_head.weight": HEAD},
        ),
    ),
    # Encoder blocks of 6 weights and decoder blocks of 10. In attention to itself scores have a
    # bias that is learned: Torch takes it apart, into two products and four in backward, in fp32.
    "T5": (
        partial(hugging_face, "T5", **WITHOUT_DROPOUT["T5"]),
        Expected(
            emulated=(2 * 16 + 2 + 1, 2 * 32 + 2 + 2), low=three(32, 32, 32),
            nvfp4=three(27, 27, 27), kept={"shared.weight": HEAD}, without_weight=4 * 6 + 2 + 2,
            left={"aten.bmm in float32": 4 * 6},
        ),
    ),
    # The patches are a convolution, whose input needs no gradient.
    "ViT": (
        partial(hugging_face, "ViT"),
        Expected(
            emulated=(1 + 2 * 6 + 2 + 1, 1 + 2 * 12 + 2 + 2),
            low=three(13, 12, 13), nvfp4=three(10, 9, 10), without_weight=2 + 2,
            kept={"classifier.weight": HEAD},
        ),
    ),
    "MLP": (
        mlp,
        Expected(
            emulated=(3, 5), low=three(2, 1, 2), nvfp4=three(1, 0, 1), kept={"4.weight": HEAD}
        ),
    ),
    # Both gradients of a convolution are one operation.
    "CNN": (
        cnn,
        Expected(
            emulated=(5, 4 + 2), low=three(2, 1, 2), nvfp4=three(2, 1, 2),
            kept={
                "3.weight": "a grouped convolution", "6.weight": "a transposed convolution",
                "9.weight": HEAD,
            },
        ),
    ),
    # Encoder layers multiply with 4 weights and decoder layers with 7: queries of cross attention
    # apart from keys and values. The two inputs need no gradient.
    "Transformer": (
        encoder_and_decoder,
        Expected(
            emulated=(22 + 6, 22 + 20 + 6), low=three(21, 19, 21), nvfp4=three(17, 15, 17),
            kept={"decoder.layers.1.linear2.weight": HEAD}, without_weight=6 + 6,
        ),
    ),
    "cross attention": (
        cross_attention,
        Expected(
            emulated=(4 + 2, 4 + 1 + 4), low=three(3, 0, 3), nvfp4={},
            kept={"out_proj.weight": HEAD}, without_weight=2 + 4,
        ),
    ),
    # The gradient of a matrix times a vector is an outer product, which sums nothing.
    "functional": (
        functional,
        Expected(emulated=(9, 9 + 7), low=three(9, 9, 9), nvfp4=three(7, 7, 7)),
    ),
    # Two layers, two directions: the inputs' product at once, the state's at each of five steps.
    # The first state needs no gradient.
    "LSTM": (
        partial(recurrent, nn.LSTM),
        Expected(
            emulated=(4 * 6 + 1, 4 * (5 + 6) + 2), low=three(24, 20, 24), nvfp4=three(18, 15, 18),
            kept={"head.weight": HEAD},
        ),
    ),
    "GRU": (
        partial(recurrent, nn.GRU),
        Expected(
            emulated=(4 * 6 + 1, 4 * (5 + 6) + 2), low=three(24, 20, 24), nvfp4=three(18, 15, 18),
            kept={"head.weight": HEAD},
        ),
    ),
    "RNN": (
        partial(recurrent, nn.RNN),
        Expected(
            emulated=(4 * 6 + 1, 4 * (5 + 6) + 2), low=three(24, 20, 24), nvfp4=three(18, 15, 18),
            kept={"head.weight": HEAD},
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_how_many_products_are_converted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, expected = CASES[name]
    torch.manual_seed(0)
    model, loss_of = make()
    exact, _ = run(CATALOGUE["fp32"], model, loss_of)
    monkeypatch.setattr("torch.backends.mkldnn.enabled", name != "LSTM")  # trains none in fp16
    native, _ = run(CATALOGUE["fp16-mixed"], model, loss_of, "native")
    for recipe in ("fp16-mixed", "fp8-current", "mxfp8", "nvfp4"):
        found, report = run(CATALOGUE[recipe], model, loss_of)
        assert dict(report.left) == expected.left
        error = (flat(found) - flat(exact)).norm() / flat(exact).norm()
        if recipe == "fp16-mixed":
            assert (report.emulated["forward"], report.emulated["backward"]) == expected.emulated
            assert not report.converted
            assert (flat(found) - flat(native)).norm() < 2e-3 * flat(exact).norm()
            continue
        counts = expected.nvfp4 if recipe == "nvfp4" else expected.low
        assert kinds(report) == counts, recipe
        if recipe == "nvfp4":
            kept = {w for w, why in report.kept.items() if not why.startswith("among the last")}
            assert kept <= expected.kept.keys() <= report.kept.keys()
        else:
            assert report.kept == expected.kept
        assert report.without_weight == expected.without_weight
        assert 1e-3 < error < (0.9 if recipe == "nvfp4" else 0.25), recipe


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_torch_computes_in_fp32_is_said() -> None:
    """With dropout Torch takes attention apart on the CPU, in fp32 whatever the format is."""
    torch.manual_seed(0)
    model, loss_of = hugging_face("GPT-2")
    _, report = run(CATALOGUE["fp16-mixed"], model, loss_of)
    assert dict(report.left) == {"aten.bmm in float32": 2 * 6}
    assert (report.emulated["forward"], report.emulated["backward"]) == (2 * 4 + 1, 2 * 8 + 2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_experts_in_one_piece_are_refused_and_one_by_one_converted() -> None:
    torch.manual_seed(0)
    model, loss_of = hugging_face("Mixtral")
    with pytest.raises(RecipeError, match=r"_grouped_mm.*experts.gate_up_proj in one piece"):
        run(CATALOGUE["mxfp8"], model, loss_of)
    model, loss_of = hugging_face("Mixtral", experts_implementation="eager")
    exact, _ = run(CATALOGUE["fp32"], model, loss_of)
    found, report = run(CATALOGUE["mxfp8"], model, loss_of)
    by_weight = Counter(name.rpartition(".")[2] for name, _ in report.converted.elements())
    num_used = by_weight["gate_up_proj"] // 3
    assert num_used in range(2, 2 * 4 + 1)  # experts with tokens, in two blocks
    assert by_weight == {"gate_up_proj": 3 * num_used, "down_proj": 3 * num_used, "weight": 2 * 15}
    assert 0 < (flat(found) - flat(exact)).norm() < 0.3 * flat(exact).norm()


# Recomputation


class Scaled(torch.autograd.Function):
    """A product of one's own, with one's own backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return grads[0] @ w, grads[0].T @ x


class Recomputed(nn.Module):
    """A block that is checkpointed as a whole, with something that is hard to repeat inside."""

    def __init__(self, inside: str, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inside, self.how = inside, how
        first: nn.Module = nn.Linear(32, 32)
        if inside == "weight norm":
            first = weight_norm(first)
        elif inside in ("LSTM", "GRU"):
            first = getattr(nn, inside)(32, 32)
        elif inside == "convolution":
            first = nn.Conv1d(32, 32, 3, padding=1)
        self.first, self.second = first, nn.Linear(32, 32)

    def part(self, x: Tensor) -> Tensor:
        match self.inside:
            case "own function":
                return Scaled.apply(x.bfloat16(), self.first.weight.bfloat16())  # type: ignore[return-value,union-attr,operator]
            case "convolution":
                return self.first(x.T[None])[0].T
            case "LSTM" | "GRU":
                return self.first(x)[0]
        return torch.tanh(self.first(x))

    def block(self, x: Tensor) -> Tensor:
        if self.inside.startswith("nested"):
            x = checkpoint(self.part, x, use_reentrant=self.inside == "nested, reentrant")
        else:
            x = self.part(x)
        return torch.relu(self.second(x))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "plain":
            return self.block(x)
        return checkpoint(self.block, x, use_reentrant=self.how == "reentrant")


# Once in forward, then two gradients of two weights; of the LSTM's and GRU's two, the second meets
# a first state that needs no gradient.
INSIDE = {
    "linear": three(2, 2, 2), "nested, reentrant": three(2, 2, 2),
    "nested, not reentrant": three(2, 2, 2), "own function": three(2, 2, 2),
    "weight norm": three(2, 2, 2), "convolution": three(2, 2, 2), "LSTM": three(3, 2, 3),
    "GRU": three(3, 2, 3),
}  # fmt: skip


@pytest.mark.parametrize("inside", INSIDE)
def test_recomputation_changes_no_bit(inside: str) -> None:
    torch.manual_seed(1)
    x = torch.randn(1, 16, 32) if inside in ("LSTM", "GRU") else torch.randn(16, 32)
    if inside in ("LSTM", "GRU"):
        x = x[:, :1].contiguous()
    x.requires_grad_()

    def loss_of(model: nn.Module) -> Tensor:
        return model(x).float().square().mean()

    expected, report = run(everywhere(), Recomputed(inside, "plain"), loss_of, "auto")
    counts = kinds(report)
    again = counts["forward"] - INSIDE[inside]["forward"]  # a nested block computes itself twice
    assert again == (1 if inside.startswith("nested") else 0)
    assert {**counts, "forward": counts["forward"] - again} == INSIDE[inside]
    for how in ("reentrant", "not reentrant"):
        model = Recomputed(inside, how)
        found, report = run(everywhere(), model, loss_of, "auto")
        same_bits(found, expected)
        recomputed = kinds(report)
        assert recomputed.pop("forward") > counts["forward"]
        assert recomputed.items() <= counts.items()
        with compute(everywhere(), model, memory=Memory()):
            model.zero_grad()
            loss_of(model).backward()  # and inside
        same_bits(gradients(model), expected)


@pytest.mark.parametrize("name", ["fp8-delayed", "nvfp4", "fp16-mixed", "stochastic"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_checkpointing_of_a_foreign_model_changes_no_bit(name: str) -> None:
    """Over three steps: amax histories, random bits and saved scales are repeated."""
    pytest.importorskip("transformers")
    stochastic = everywhere(alike("mxfp4", rounding="stochastic"))
    recipe = stochastic if name == "stochastic" else CATALOGUE[name]
    found = {}
    for how in (None, True, False):
        torch.manual_seed(0)
        model, loss_of = hugging_face("Llama with grouped queries")
        if how is not None:
            model.activation_checkpointing_enable({"use_reentrant": how})  # type: ignore[operator]
        memory = Memory(seed=3)
        for _ in range(3):
            memory.step += 1
            found[how], _ = run(recipe, model, loss_of, memory=memory)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.5)
    same_bits(found[True], found[None])
    same_bits(found[False], found[None])


TWO = """
import hashlib, sys
import torch
import torch.distributed as dist
from torch import nn
from floatscope.recipes import CATALOGUE
from floatscope.recipes.compute import compute
from floatscope.recipes.report import Memory

torch.set_num_threads(1)
rank, meeting, names = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
torch.manual_seed(0)
x, model = torch.randn(24, 48), nn.Sequential(nn.Linear(48, 40), nn.GELU(), nn.Linear(40, 48))
dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
wrapped = nn.parallel.DistributedDataParallel(model)
for name in names:
    model.zero_grad()
    with compute(CATALOGUE[name], wrapped, "emulated", Memory(seed=1)) as report:
        loss = wrapped(x).float().square().mean()
    loss.backward()
    bits = b"".join(p.grad.numpy().tobytes() for p in model.parameters())
    num = report.converted.total() or report.emulated.total()
    print(name, num, hashlib.sha256(bits).hexdigest(), flush=True)
"""


def test_the_same_bits_in_one_process_or_two(tmp_path: Path) -> None:
    """Here, and data-parallel in two fresh processes that have the same data."""
    names = ("fp16-mixed", "fp8-current", "mxfp8", "mxfp6", "int8")  # none draws by weights' names
    script = tmp_path / "two.py"
    script.write_text(TWO)
    started = [
        subprocess.Popen(
            [sys.executable, str(script), rank, str(tmp_path / "meeting"), *names],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for rank in "01"
    ]  # fmt: skip
    printed = []
    for process in started:
        out, error = process.communicate(timeout=500)
        assert process.returncode == 0, error
        printed.append(out.splitlines())
    assert printed[0] == printed[1]
    counts = [line.split()[:2] for line in printed[0]]
    assert counts == [["fp16-mixed", "5"], *([name, "2"] for name in names[1:])]

    torch.manual_seed(0)
    x, model = torch.randn(24, 48), nn.Sequential(nn.Linear(48, 40), nn.GELU(), nn.Linear(40, 48))
    for line in printed[0]:
        name, _, digest = line.split()
        found, _ = run(
            CATALOGUE[name], model, lambda m: m(x).float().square().mean(), memory=Memory(1)
        )
        bits = b"".join(g.numpy().tobytes() for g in found.values())
        assert hashlib.sha256(bits).hexdigest() == digest, name


# Whatever multiplies


def test_derived_weights_of_one_shape_are_not_mixed_up() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(weight_norm(nn.Linear(32, 32)), weight_norm(nn.Linear(32, 32)))
    x = torch.randn(8, 32)
    exact = model(x)
    for how in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with how(), compute(everywhere(alike("mxfp8-e4m3")), model) as report:
            found = model(x)
        assert report is not None
        assert kinds(report) == {"forward": 2}
        assert 1e-3 < (found - exact).norm() / exact.norm() < 0.1


def test_what_lies_behind_a_product_is_no_weight_of_it() -> None:
    """An embedding's table, which is long and so would be kept, before the first linear layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8))
    ids = torch.randint(0, 50, (4, 5))
    _, report = run(CATALOGUE["mxfp8"], model, lambda m: m(ids).float().square().mean())
    assert set(report.converted) == {
        (f"{layer}.weight", kind)
        for layer in (1, 3)
        for kind in ("forward", "input_gradient", "weight_gradient")
    }


class Latent(nn.Module):
    """Learned queries: a parameter that another one multiplies."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.latent = nn.Parameter(torch.randn(8, 32))
        self.project, self.how = nn.Linear(32, 32), how

    def forward(self) -> Tensor:
        latent = self.latent if self.how == "a parameter" else self.latent * 1
        return self.project(latent)


def test_a_parameter_may_be_an_activation() -> None:
    found = {}
    for how in ("a parameter", "a copy"):
        torch.manual_seed(0)
        model = Latent(how)
        found[how], report = run(everywhere(), model, lambda m: m().float().square().mean())
        assert set(report.converted) == {
            ("project.weight", kind) for kind in ("forward", "input_gradient", "weight_gradient")
        }
    same_bits(found["a parameter"], found["a copy"])


def test_a_weight_times_itself_is_left() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(32, 32, bias=False), torch.randn(8, 32)

    def loss_of(model: nn.Module) -> Tensor:
        square = layer.weight @ layer.weight.T
        return model(x).float().square().mean() + square.float().square().mean()

    _, report = run(everywhere(), layer, loss_of)
    assert kinds(report) == three(1, 0, 1)
    assert report.kept == {"weight": "multiplied with itself"}


def test_written_into_a_tensor_is_the_same_product() -> None:
    torch.manual_seed(0)
    model = nn.ParameterDict({"w": nn.Parameter(torch.randn(32, 16))})
    x, start = torch.randn(8, 32), torch.randn(8, 16)
    w = model["w"]
    for recipe, products in ((everywhere(), "bf16"), (everywhere(alike("tf32"), "fp32"), "fp32")):
        dtype = torch.bfloat16 if products == "bf16" else torch.float32
        a, b, c = x.to(dtype), w.to(dtype), start.to(dtype)
        with torch.no_grad(), compute(recipe, model) as report:
            b = w.to(dtype)
            expected, sums = torch.mm(a, b), torch.addmm(c, a, b, beta=0.5, alpha=2.0)
            out, empty = torch.empty(8, 16, dtype=dtype), torch.empty(0, dtype=dtype)
            torch.mm(a, b, out=out)
            torch.mm(a, b, out=empty)
            inplace = c.clone().addmm_(a, b, beta=0.5, alpha=2.0)
        assert report is not None
        assert kinds(report) == {"forward": 5}
        assert torch.equal(out, expected)
        assert torch.equal(empty, expected)
        assert torch.equal(inplace, sums)
    half = x.half(), w.detach().half()
    with compute(CATALOGUE["fp16-mixed"], model, "emulated") as report:
        out = torch.zeros(8, 16).half().addmm_(*half)
        assert torch.equal(out, torch.mm(*half))
    assert report is not None
    assert report.emulated == {"forward": 2}


def test_two_models_each_in_a_context_of_its_own() -> None:
    """As adversaries are: the second's backward goes on in the first, by the first's recipe."""
    torch.manual_seed(0)
    one, other, x = nn.Linear(32, 32), nn.Linear(32, 32), torch.randn(8, 32)
    both = nn.ModuleList([one, other])
    expected, _ = run(everywhere(), both, lambda _: other(one(x)).float().square().mean(), "auto")
    both.zero_grad()
    with compute(everywhere(), one) as first:
        h = one(x)
    with compute(everywhere(), other) as second:
        loss = other(h).float().square().mean()
    loss.backward()
    same_bits(gradients(both), expected)
    assert first is not None
    assert second is not None
    assert kinds(first) == three(1, 0, 1)
    assert kinds(second) == three(1, 1, 1)


def test_what_was_computed_outside_stays_as_it_was() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 8)), torch.randn(8, 32)
    h = model[0](x)
    with compute(everywhere(), model) as report:
        loss = model[1](h).float().square().mean()
    loss.backward()
    assert report is not None
    assert report.converted.keys() == {
        ("1.weight", kind) for kind in ("forward", "input_gradient", "weight_gradient")
    }
    assert model[0].weight.grad is not None
    gradient = h.grad_fn  # the plain layer's
    assert gradient is not None
    assert report.without_weight == 0


def test_operands_that_were_kept_elsewhere() -> None:
    """As NumPy arrays: other memory, so no mark is left, and shapes that are all alike."""
    sixteen, words = {2: torch.int16, 4: torch.int32}, torch.from_numpy

    def away(t: Tensor) -> Any:
        bits = t.detach().clone(memory_format=torch.preserve_format).view(sixteen[t.element_size()])
        return bits.numpy().copy(order="K"), t.dtype

    hooks = torch.autograd.graph.saved_tensors_hooks(
        away, lambda kept: words(kept[0]).view(kept[1])
    )
    makers: list[Callable[[], nn.Module]] = [
        lambda: nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)),
        lambda: nn.Sequential(nn.Unflatten(1, (2, 4, 4)), nn.Conv2d(2, 4, 3), nn.Flatten()),
    ]
    for make in makers:
        torch.manual_seed(0)
        model, x = make(), torch.randn(32, 32, requires_grad=True)
        toward = torch.randn_like(model(x))

        def loss_of(m: nn.Module, x: Tensor = x, toward: Tensor = toward) -> Tensor:
            return (m(x).float() * toward).sum()

        expected, plain = run(everywhere(), model, loss_of)
        with hooks:
            found, report = run(everywhere(), model, loss_of)
        same_bits(found, expected)
        assert report.converted == plain.converted
    with hooks, pytest.raises(RecipeError, match="is not the tensor that forward saved"):
        run(everywhere(), model := makers[0](), lambda m: m(x).sum())  # a gradient of ones alone
    assert isinstance(model, nn.Module)


# What cannot be reached


def refused(
    f: Callable[[], Any], model: nn.Module, match: str, recipe: Recipe | None = None
) -> None:
    with (
        pytest.raises(RecipeError, match=match),
        compute(recipe or everywhere(), model, "emulated"),
    ):
        f()


def test_products_in_one_piece_are_refused_by_name_and_left_if_kept() -> None:
    torch.manual_seed(0)
    model = nn.ParameterDict({"w": nn.Parameter(torch.randn(3, 8, 8))})
    w, x = model["w"], torch.randn(3, 4, 8)
    pieces: dict[str, Callable[[], Tensor]] = {
        "aten.addbmm": lambda: torch.addbmm(torch.zeros(4, 8), x, w),
        "aten._cdist_forward": lambda: torch.cdist(x, w),
        "aten._trilinear": lambda: F.bilinear(x, x, w),
        "aten.conv_tbc": lambda: torch.conv_tbc(x, w, torch.zeros(8)),
        "aten.dot": lambda: torch.dot(x[0, 0], w[0, 0].to(x.dtype)),
    }
    for recipe in (everywhere(), everywhere(alike("tf32"), "fp32")):
        for name, product in pieces.items():
            refused(product, model, rf"{name}.* multiplies w in one piece.*keep the weight", recipe)
    with torch.no_grad(), compute(everywhere(UNLIKE, "bf16", "w"), model, "native") as report:
        for product in pieces.values():
            product()
    assert report is not None
    assert not report.converted
    assert report.kept == {"w": "named"}


def test_operands_that_have_no_format_are_refused() -> None:
    complex_ = nn.ParameterDict({"w": nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))})
    integer = nn.ParameterDict({"w": nn.Parameter(torch.ones(4, 4).int(), requires_grad=False)})
    dense = nn.ParameterDict({"w": nn.Parameter(torch.randn(4, 4))})
    one = torch.ones(4, 1, dtype=torch.complex64)
    refused(lambda: complex_["w"] @ one, complex_, "of w is torch.complex64")
    refused(lambda: torch.ones(4, 4).int() @ integer["w"], integer, "of w is torch.int32")
    sparse = torch.eye(4).to_sparse()
    refused(lambda: torch.sparse.mm(sparse, dense["w"]), dense, "multiplies w in one piece")
    with compute(everywhere(), dense) as report:
        assert torch.equal(torch.sparse.mm(sparse, torch.ones(4, 1)), torch.ones(4, 1))
    assert report is not None
    assert report.without_weight == 1


def test_another_librarys_operation_is_said() -> None:
    @torch.library.custom_op("floatscope_tests::scaled", mutates_args=())
    def scaled(x: Tensor) -> Tensor:
        return x * 2

    layer = nn.Linear(8, 8)
    with torch.no_grad(), compute(everywhere(), layer) as report:
        scaled(layer.weight)
        scaled(torch.ones(2))
    assert report is not None
    assert report.kept == {"weight": "floatscope_tests.scaled.default is another library's"}
    assert report.left == {"floatscope_tests.scaled in float32": 2}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_code_gives_the_eager_result_or_is_refused() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(32, 32), torch.randn(8, 32)

    class Calls(nn.Module):
        def __init__(self, function: Callable[..., Tensor]) -> None:
            super().__init__()
            self.layer, self.function = layer, function

        def forward(self, x: Tensor) -> Tensor:
            return self.function(x, self.layer.weight)

    def plain(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w)

    def loss_of(model: nn.Module) -> Tensor:
        return model(x).float().square().mean()

    compiled = torch.compile(plain, backend="aot_eager")
    assert compiled(x, layer.weight).isfinite().all()  # compiled before the recipe is entered
    for recipe in (everywhere(), CATALOGUE["fp16-mixed"]):
        expected, eager = run(recipe, Calls(plain), loss_of)
        found, report = run(recipe, Calls(compiled), loss_of)
        same_bits(found, expected)
        assert report == eager

    scripted, num_refused = torch.jit.script(plain), 0
    expected, _ = run(everywhere(), Calls(plain), loss_of)
    for _ in range(3):  # the first time TorchScript only looks on
        with contextlib.suppress(RecipeError):
            num_refused += 1
            found, _ = run(everywhere(), Calls(scripted), loss_of)
            num_refused -= 1
            same_bits(found, expected)
    assert num_refused
    with pytest.raises(RecipeError, match="scripted function"):
        run(everywhere(), Calls(scripted), loss_of)
    for module in (torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 4)):
        if not isinstance(module, torch.jit.ScriptModule):
            module.compile(backend="aot_eager")
        refused(lambda: None, nn.Sequential(module), "0 is compiled")
    refused(lambda: torch.cond(x.sum() > 0, layer, layer, (x,)), layer, "hides its products")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_derivatives_that_products_do_not_have_are_refused() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True)

    def energy(x: Tensor) -> Tensor:
        return layer(x).float().square().sum()

    twice = "not differentiable twice"
    refused(lambda: torch.autograd.grad(energy(x), x, create_graph=True), layer, twice)
    refused(lambda: torch.func.grad(energy)(x.detach()), layer, twice)
    refused(lambda: torch.func.jvp(energy, (x.detach(),), (x.detach(),)), layer, "forward mode")


def test_gradients_of_emulated_gradients_are_emulated() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(16, 16), torch.randn(4, 16, requires_grad=True)

    def penalty(backend: str) -> tuple[dict[str, Tensor], Report]:
        layer.zero_grad()
        with compute(CATALOGUE["fp16-mixed"], layer, backend) as report:
            energy = torch.tanh(layer(x)).float().sum()
            (gradient,) = torch.autograd.grad(energy, x, create_graph=True)
            loss = gradient.square().sum()
        loss.backward()
        return gradients(layer), report or Report()

    native, _ = penalty("native")
    found, report = penalty("emulated")
    # The gradient is a product itself, and so has two gradients, as the first one has.
    assert report.emulated == {"forward": 1 + 1, "backward": 2 + 2}
    assert (flat(found) - flat(native)).norm() < 2e-3 * flat(native).norm()
