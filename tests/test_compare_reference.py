"""The fp64 reference: every operation in double, the same random numbers, the model untouched."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import floatscope as fs
from floatscope.errors import StudyError
from floatscope.lab.compare.difference import differences
from floatscope.lab.compare.draws import SameDraws
from floatscope.lab.compare.passes import Bench, Pass
from floatscope.lab.model import make_gpt
from floatscope.lab.models import loss_in, output_for
from floatscope.lab.probe.subject import State
from floatscope.lab.run.train import batch_loss
from tests import tiny


def exact(model: nn.Module, given: Any, seed: int = 0) -> Pass:
    state = State("as given", model, lambda model: output_for(model, given))
    return Bench(state, seed, SameDraws()).exact()


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    loss.backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def apart(given: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    return differences(given, {name: g.double() for name, g in reference.items()})[0].error


class Norm(nn.Module):
    """A norm that computes in fp32 and goes back to what it was given, as many do."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Odd(nn.Module):
    """A model that converts, makes and holds on to numbers in fp32 and 16 bits."""

    def __init__(self, narrow: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), Norm(), nn.Linear(16, 4)
        self.narrow, self.held = narrow, torch.tensor([0.1, 0.2, 0.3, 0.4])

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm(self.first(x)).to(self.narrow)
        places = torch.zeros(inner.shape, dtype=self.narrow)
        for i in range(16):
            places[:, i] = inner[:, i] * 0.1
        logits = self.last(places.to(x.dtype)) + self.held
        return logits.softmax(-1, dtype=torch.float32).float().log().mean()


class Plain(Odd):
    """The same without any conversion."""

    def forward(self, x: Tensor) -> Tensor:
        wide = self.first(x)
        inner = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        logits = self.last(inner * 0.1) + self.held.double()
        return logits.softmax(-1).log().mean()


@pytest.mark.slow
def test_a_published_model_is_no_reference_when_it_is_converted_alone() -> None:
    """Llama's norms and the loss go through fp32, whatever the model is in."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2,
    )  # fmt: skip
    model, ids = transformers.LlamaForCausalLM(config), torch.randint(0, 64, (2, 16))
    batch = {"input_ids": ids, "labels": ids}
    found = exact(model, batch)
    own = gradients(model, loss_in(model(**batch)))
    alone = gradients(model.double(), loss_in(model(**batch)))
    assert 1e-8 < apart(alone, found.gradients) < 1e-6
    assert 1e-8 < apart(own, found.gradients) < 1e-6


class Sequences(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, 2, dropout=dropout, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0]).square().mean()


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.BatchNorm1d(16), nn.Linear(16, 4))


def models() -> Iterator[tuple[nn.Module, Any, Callable[[nn.Module], Tensor]]]:
    """Models with an fp32 batch, and the loss of the converted model on the converted batch."""
    torch.manual_seed(0)
    x, images, batch = torch.randn(12, 8), torch.randn(3, 2, 8, 8), tiny.batch()
    yield perceptron(), lambda m: m(x).square().mean(), lambda m: m(x.double()).square().mean()
    convolutions = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    yield (
        convolutions,
        lambda m: m(images).square().mean(),
        lambda m: m(images.double()).square().mean(),
    )
    sequences = torch.randn(3, 5, 6)
    yield Sequences(), sequences, lambda m: m(sequences.double())
    yield Sequences(), lambda m: m(sequences), lambda m: m(sequences.double())
    yield (
        make_gpt(tiny.MODEL, seed=1),
        lambda m: batch_loss(m, batch),
        lambda m: batch_loss(m, batch),
    )


def test_it_is_the_converted_model_on_the_converted_batch() -> None:
    seen = 0
    for model, given, converted in models():
        found = exact(model, given)
        double = copy.deepcopy(model).double()
        loss = converted(double)
        assert found.loss == loss.item()
        assert same(found.gradients, gradients(double, loss))
        seen += 1
    assert seen == 5


@pytest.mark.parametrize("narrow", [torch.float32, torch.bfloat16])
def test_what_the_model_converts_stays_in_double(narrow: torch.dtype) -> None:
    torch.manual_seed(0)
    model, plain, x = Odd(narrow), Plain(), torch.randn(12, 8)
    plain.load_state_dict(model.state_dict())
    found = exact(model, x)
    wide = gradients(plain.double(), plain(x.double()))
    assert apart(found.gradients, wide) < 1e-15
    # Converting the model alone leaves conversions in it, and the result is no reference.
    alone = gradients(model.double(), loss_in(model(x.double())))
    assert apart(alone, wide) > 1e-9


def test_dropout_draws_the_same_masks() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 8)
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 4))
    found = fs.compare(model, lambda m: m(x).square().mean(), ["bf16-mixed"], backend="emulated")
    assert found.arms[0].whole.error < 1e-6
    assert found.arms[1].whole.error < 0.02
    assert found.drew == ("aten::bernoulli_.float",)
    assert any("every pass drew the same" in text for text in found.answers)


def test_noise_that_a_model_adds_is_the_same() -> None:
    def loss_of(model: nn.Module) -> Tensor:
        y = model(x)
        noise = (torch.randn_like(y), torch.rand(y.shape, dtype=y.dtype), y.new_empty(4).normal_())
        kept = torch.bernoulli(torch.full_like(y, 0.5))
        return ((y + sum(noise)) * kept)[torch.randperm(32)[:20]].square().mean()

    torch.manual_seed(0)
    model, x = nn.Linear(8, 4), torch.randn(32, 8)
    found = fs.compare(model, loss_of, ["bf16-mixed"], backend="emulated")
    assert found.arms[0].whole.error < 1e-6
    assert found.arms[1].whole.error < 0.02
    assert len(found.drew) == 5
    torch.manual_seed(0)
    single = torch.randn(32)
    torch.manual_seed(0)
    assert not torch.equal(torch.randn(32, dtype=torch.float64).float(), single)  # left to Torch


def test_another_seed_draws_another_mask() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5)), torch.randn(32, 8)
    first, again, other = (exact(model, lambda m: m(x).square().mean(), s) for s in (3, 3, 4))
    assert same(first.gradients, again.gradients)
    assert apart(other.gradients, first.gradients) > 0.1


class Checkpointed(nn.Module):
    def __init__(self, how: bool | None) -> None:
        super().__init__()
        self.how, self.first, self.norm = how, nn.Linear(8, 16), Norm()
        self.block = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3), self.norm)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.how is None:
            return self.block(x).square().sum(0)[3:].mean()
        return checkpoint(self.block, x, use_reentrant=self.how).square().sum(0)[3:].mean()


@pytest.mark.parametrize("how", [True, False])
def test_recomputed_blocks_are_in_double_with_the_same_masks(how: bool) -> None:
    torch.manual_seed(0)
    model, x = Checkpointed(None), torch.randn(12, 8)
    plain = exact(model, x)
    model.how = how
    recomputed = exact(model, x)
    assert recomputed.loss == plain.loss
    assert apart(recomputed.gradients, plain.gradients) < 1e-15


def test_the_model_is_left_as_it_was() -> None:
    torch.manual_seed(3)
    model, x = nn.Sequential(perceptron(), nn.Dropout(0.5)), torch.randn(16, 8)
    model[0][0].weight.grad = gradient = torch.ones(16, 8)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    memory = [t.data_ptr() for t in (*model.parameters(), *model.buffers())]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fs.compare(model, lambda m: m(x).square().mean(), ["bf16-pure", "mxfp4"], backend="emulated")
    assert torch.equal(torch.rand(3), expected), "Torch's generator has moved"
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert memory == [t.data_ptr() for t in (*model.parameters(), *model.buffers())]
    assert model[0][0].weight.grad is gradient
    assert model.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_it_is_left_as_it_was_when_the_loss_raises() -> None:
    torch.manual_seed(0)
    model, calls = nn.Linear(4, 2), []

    def loss_of(model: nn.Module) -> Tensor:
        calls.append(model.weight.dtype)
        if len(calls) == 2:
            raise ValueError("out of data")
        return model(torch.ones(2, 4)).square().mean()

    with pytest.raises(StudyError, match="the pass under fp32 raised ValueError: out of data"):
        fs.compare(model, loss_of, [])
    assert calls == [torch.float64, torch.float32]
    assert model.weight.dtype is torch.float32
    assert model.weight.grad is None


def drawing(draw: Callable[[Tensor], Tensor]) -> Callable[[nn.Module], Tensor]:
    return lambda model: draw(model(torch.ones(4, 8)))


def sampled(y: Tensor) -> Tensor:
    return -y.log_softmax(-1).gather(1, torch.multinomial(y.softmax(-1), 1)).mean()


OUTSIDE = torch.zeros(4, 4)
OWN = torch.Generator()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (sampled, "draws random numbers by aten::multinomial.*model.eval"),
        (lambda y: F.rrelu(y, training=True).mean(), "aten::rrelu_with_noise"),
        (lambda y: (y * torch.rand(4, 4, generator=OWN)).mean(), "a generator of its own"),
        (lambda y: OUTSIDE.clone().detach().copy_(y).mean(), r"aten::copy_ writes into.*float32"),
    ],
)
def test_what_is_not_the_same_in_every_precision_is_refused(
    draw: Callable[[Tensor], Tensor], message: str
) -> None:
    torch.manual_seed(0)
    with pytest.raises(StudyError, match=message):
        exact(nn.Linear(8, 4), drawing(draw))


def test_evaluation_mode_is_a_way_out() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.RReLU()).eval()
    assert exact(model, drawing(lambda y: y.square().mean())).gradients
