"""Loss scaling, exactly: what a scale must not change, and how the scale itself must move.

A scale that is a power of two shifts exponents and changes no significand. As long as fp16 holds
every value of the backward pass as a normal number, the unscaled gradients are therefore the same
bits for all such scales. The path of the scale is arithmetic on whole numbers, too.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from floatscope.lab.model import make_gpt
from floatscope.lab.run.train import batch_loss, make_optimizer
from floatscope.recipes import LossScaling, Recipe
from floatscope.recipes.compute import compute
from floatscope.recipes.loss_scaling import LossScaleCollapse, LossScaler
from floatscope.recipes.recipe import ProductFormat
from floatscope.recipes.train_step import StepResult, TrainStep
from tests import tiny

SMALLEST_NORMAL, LARGEST, OVERFLOW = 2.0**-14, 65_504.0, 65_520.0  # of fp16
WIDTH = 16
RUNS = st.lists(st.integers(0, 7), min_size=1, max_size=8)  # of clean steps

Loss = Callable[..., Tensor]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


def scaled(products: ProductFormat, initial: float | None, **constants: Any) -> Recipe:
    scaling = None if initial is None else LossScaling(initial=initial, **constants)
    return Recipe(name="test", products=products, loss_scaling=scaling, summary="", source="")


def signed(generator: torch.Generator, *shape: int) -> Tensor:
    """Magnitudes in [1, 2) with random signs."""
    signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return signs * (1 + torch.rand(shape, generator=generator))


def chain(
    recipe: Recipe, make: MakeOptimizer = SGD, seed: int = 0, depth: int = 3, **more: Any
) -> tuple[TrainStep, Loss]:
    """A step on linear layers, none of whose gradients is masked to zero, and its loss."""
    generator = torch.Generator().manual_seed(seed)
    layers = [(nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(0.25)) for _ in range(depth)]
    model = nn.Sequential(*itertools.chain(*layers))
    for parameter in model.parameters():
        parameter.data = signed(generator, *parameter.shape) / 4
    x, y = signed(generator, 4, WIDTH), signed(generator, 4, WIDTH)
    step = TrainStep(model, make(model.parameters()), recipe, backend="emulated", **more)
    return step, lambda m, factor=1.0, gain=1.0: mse_loss(m(x * gain), y) * factor


def gradient_of(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()])  # type: ignore[union-attr]


def weights_of(step: TrainStep) -> Tensor:
    return torch.cat([p.detach().flatten() for p in step.model.parameters()])


def bits(tree: Any) -> list[Any]:
    """The bits of every fp32 tensor in nested containers, and whatever else they hold."""
    return [v.view(torch.int32).tolist() if isinstance(v, Tensor) else v for v in tree_leaves(tree)]


def identical(left: Any, right: Any) -> bool:
    return bits(left) == bits(right)


class Watch(TorchDispatchMode):
    """Collects the magnitudes of every fp16 tensor that an operation makes, but not of views."""

    def __init__(self) -> None:
        super().__init__()
        self.magnitudes: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        before, after = (
            {t.untyped_storage().data_ptr(): t for t in tree_leaves(tree) if isinstance(t, Tensor)}
            for tree in (args, result)
        )
        new = [t for storage, t in after.items() if storage not in before]
        self.magnitudes += [t.abs().flatten().float() for t in new if t.dtype is torch.float16]
        return result


@dataclass(frozen=True)
class Backward:
    """One backward pass of a chain: its unscaled gradient, and all fp16 magnitudes within it."""

    gradient: Tensor
    magnitudes: Tensor
    result: StepResult

    def clean_at(self, exponent: int) -> bool:
        """Whether all magnitudes times 2**exponent are finite and above the smallest normal."""
        # The smallest normal itself may be a subnormal rounded up.
        values = self.magnitudes * 2.0**exponent
        return bool(((values > SMALLEST_NORMAL) & (values <= LARGEST)).all())

    def part_different(self, other: Backward) -> float:
        return (self.gradient != other.gradient).double().mean().item()


def backward_at(scale: float, seed: int = 0, depth: int = 3) -> Backward:
    step, loss = chain(scaled("fp16", scale, floor=0.0), seed=seed, depth=depth)
    seen: list[Tensor] = []

    def loss_of(model: nn.Module) -> Tensor:
        value = loss(model)
        watch.magnitudes.clear()  # the forward pass does not depend on the scale
        return value

    with Watch() as watch:
        result = step(loss_of, lambda model: seen.append(gradient_of(model)))
    # The loss's gradient; each layer's activation function, weight and bias; all inputs but one's.
    assert len(watch.magnitudes) == 4 * depth
    return Backward(seen[0], torch.cat(watch.magnitudes), result)


def test_gradients_are_the_same_bits_at_every_power_of_two_within_range() -> None:
    runs = {k: backward_at(2.0**k) for k in range(-28, 28)}
    clean = [k for k, run in runs.items() if run.clean_at(0)]
    assert clean == [k for k in runs if runs[6].clean_at(k - 6)]  # one run predicts them all
    assert clean == list(range(clean[0], clean[-1] + 1))
    assert len(clean) >= 10
    for k in clean:
        assert identical(runs[k].gradient, runs[6].gradient), k
        assert runs[k].result.grad_norm == runs[6].result.grad_norm
        assert not runs[k].result.skipped
    for k in range(clean[-1] + 1, 28):
        assert runs[k].result.num_nonfinite > 0
        assert runs[k].result.skipped
    for k in range(-28, clean[0] - 7):  # the smallest value has lost at least 8 bits
        assert runs[k].part_different(runs[6]) > 0, k
        assert not runs[k].result.skipped
    assert runs[-24].part_different(runs[6]) > 0.9


def test_a_scale_that_is_no_power_of_two_changes_almost_every_gradient() -> None:
    near, power = backward_at(1000.0), backward_at(1024.0)
    assert (near.clean_at(0), power.clean_at(0)) == (True, True)
    assert near.part_different(power) > 0.9


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.integers(1, 4), st.data())
def test_one_run_predicts_the_range_of_scales(seed: int, depth: int, data: st.DataObject) -> None:
    base = backward_at(2.0**6, seed, depth)
    assume(base.clean_at(0))
    clean = [6 + k for k in range(-30, 30) if base.clean_at(k)]
    within = backward_at(2.0 ** data.draw(st.sampled_from(clean)), seed, depth)
    assert within.clean_at(0)
    assert identical(within.gradient, base.gradient)
    beyond = backward_at(2.0 ** (clean[-1] + 1), seed, depth).result
    assert (beyond.num_nonfinite > 0, beyond.skipped) == (True, True)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1), st.integers(-126, 127))
def test_unscaling_rounds_the_quotient_once(values: list[float], exponent: int) -> None:
    """It multiplies by 1/S, a power of two, so only a result outside fp32's range is inexact."""
    weight = nn.Parameter(torch.zeros(len(values)))
    weight.grad = torch.tensor(values)
    scaling = LossScaling(initial=2.0**exponent, floor=min(2.0**exponent, 1.0))
    scaler = LossScaler(scaling, torch.device("cpu"))
    scaler.scaled(torch.zeros(()))
    scaler.unscale(SGD([weight]))
    assert identical(weight.grad, torch.tensor(values) / 2.0**exponent)
    assert identical(weight.grad, (torch.tensor(values).double() / 2.0**exponent).float())


def drive(scaling: LossScaling, overflows: Iterable[bool]) -> list[float]:
    """The scale before the first step and after each one."""
    weight = nn.Parameter(torch.zeros(()))
    sgd, scaler = SGD([weight], lr=0.0), LossScaler(scaling, torch.device("cpu"))
    scales = [scaler.scale]
    for overflow in overflows:
        weight.grad = None
        scaler.scaled(weight * (math.inf if overflow else 1.0)).backward()
        scaler.unscale(sgd)
        assert scaler.step(sgd, finite=bool(weight.grad.isfinite())) is overflow
        scales.append(scaler.scale)
    return scales


def overflows_between(runs: Sequence[int]) -> list[bool]:
    """Runs of clean steps of the given lengths, with one overflow between two runs."""
    return [step for length in runs for step in [*[False] * length, True]][:-1]


@given(RUNS, st.integers(1, 4), st.sampled_from([2.0, 4.0]), st.sampled_from([0.5, 0.25, 0.125]))
def test_scale_is_its_growths_and_skips(runs: list[int], n: int, up: float, down: float) -> None:
    """log S = log S₀ + u·log γ + s·log β, where u counts whole intervals within clean runs."""
    scaling = LossScaling(growth_interval=n, growth_factor=up, backoff_factor=down, floor=0.0)
    scales = drive(scaling, overflows_between(runs))
    factors = [after / before for before, after in itertools.pairwise(scales)]
    assert [factor == down for factor in factors] == overflows_between(runs)
    assert {*factors} <= {1.0, up, down}
    num_growths = sum(length // n for length in runs)
    assert factors.count(up) == num_growths
    assert scales[-1] == scaling.initial * up**num_growths * down ** (len(runs) - 1)


@given(RUNS.filter(any), st.integers(1, 4))
def test_skips_are_bounded_on_every_path(runs: list[int], n: int) -> None:
    """s ≤ (T − N·log₂(S/S₀))/(N + 1); at a rate r of skips, S loses ≥ r − (1 − r)/N bits a step."""
    overflows = overflows_between(runs)
    scales = drive(LossScaling(growth_interval=n, floor=0.0), overflows)
    steps, skips, bits = len(overflows), sum(overflows), int(math.log2(scales[-1] / scales[0]))
    assert skips * (n + 1) <= steps - n * bits
    rate = Fraction(skips, steps)
    assert Fraction(-bits, steps) >= rate - (1 - rate) / n


def test_without_a_skip_the_scale_grows_every_interval_until_fp32_ends() -> None:
    clean = drive(LossScaling(growth_interval=5), [False] * 50)
    assert clean[5::5] == [2.0**k for k in range(17, 27)]
    capped = drive(LossScaling(initial=2.0**125, growth_interval=1), [False] * 5)
    assert capped == [2.0**125, 2.0**126, *[2.0**127] * 4]


def steps_of(gradients: Iterable[float], initial: float, n: int) -> list[StepResult]:
    """Steps of one weight with the given true gradients, which fp16 rounds after scaling."""
    layer, x = nn.Linear(1, 1, bias=False), torch.ones(1, 1)
    recipe = scaled("fp16", initial, growth_interval=n)
    step = TrainStep(layer, SGD(layer.parameters(), lr=0.0), recipe, backend="emulated")
    return [step(lambda m, g=g: m(x).float().sum() * g) for g in gradients]


def edge_of(gradient: float) -> int:
    """Exponent of S*, the largest scale at which fp16 holds the scaled gradient."""
    return max(k for k in range(-20, 60) if gradient * 2.0**k < OVERFLOW)


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("distance", [-3, 0, 4])
@pytest.mark.parametrize("gradient", [1.0, OVERFLOW, OVERFLOW - 2.0**-8, 3.0 * 2.0**-17])
def test_a_constant_gradient_skips_once_a_period(gradient: float, distance: int, n: int) -> None:
    """From d bits above S*: d skips. From below: d·N steps. Then N steps at S*, one at 2S*."""
    edge = edge_of(gradient)
    above = [edge + k for k in range(distance, 0, -1)]
    below = [edge - k for k in range(-distance, 0, -1) for _ in range(n)]
    expected = above + below + ([edge] * n + [edge + 1]) * 4
    results = steps_of([gradient] * len(expected), 2.0 ** (edge + distance), n)
    assert [math.log2(r.loss_scale) for r in results] == expected
    assert [r.skipped for r in results] == [k > edge for k in expected]


def test_the_scale_lags_a_falling_gradient() -> None:
    """When the gradient falls by 2^d, the scale needs d·N steps to follow."""
    n, fall, edge = 4, 3, edge_of(1.0)
    results = steps_of([1.0] * (n + 1) + [2.0**-fall] * (fall * n + 1), 2.0**edge, n)
    lag = [edge + k for k in range(fall) for _ in range(n)]
    expected = [*[edge] * n, edge + 1, *lag, edge_of(2.0**-fall)]
    assert [math.log2(r.loss_scale) for r in results] == expected
    assert [r.skipped for r in results] == [k == n for k in range(len(results))]


@pytest.mark.parametrize("limit", [1.0, 2.0**10, 3.0 * 2.0**12])
def test_clipping_scaled_gradients_is_clipping_at_the_limit_over_the_scale(limit: float) -> None:
    """Exact above a norm of 32, where the 10⁻⁶ that Torch adds to the norm vanishes."""
    scale = 16.0
    by_hand, loss = chain(scaled("fp16", scale))
    with compute(by_hand.recipe, by_hand.model, "emulated"):
        value = loss(by_hand.model, factor=64.0)
    (value * scale).backward()
    norm = nn.utils.clip_grad_norm_(by_hand.model.parameters(), limit).item()
    for parameter in by_hand.model.parameters():
        parameter.grad /= scale
    by_hand.optimizer.step()
    step, _ = chain(by_hand.recipe, clip_norm=limit / scale)
    result = step(lambda m: loss(m, factor=64.0))
    assert result.grad_norm == norm / scale
    assert result.grad_norm > max(32.0, limit / scale)
    assert identical(weights_of(step), weights_of(by_hand))


def test_a_step_unscales_then_observes_then_clips_then_updates() -> None:
    step, loss = chain(scaled("fp16", 2.0**6), clip_norm=1.0)
    seen: list[Tensor] = []
    step.optimizer.register_step_pre_hook(lambda *_: seen.append(gradient_of(step.model)))
    result = step(loss, lambda m: seen.append(gradient_of(m)))
    observed, updating = seen
    assert identical(observed, backward_at(2.0**8).gradient)
    assert identical(updating, observed * (1.0 / (torch.tensor(result.grad_norm) + 1e-6)))


@pytest.mark.parametrize("scale", [1.0, 2.0**16, 2.0**100])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_nonfinite_gradients_are_counted_before_clipping(bad: float, scale: float) -> None:
    """Unscaling keeps infinities and NaN; clipping by a norm of NaN would spread them."""
    layer = nn.Linear(3, 1, bias=False)
    step = TrainStep(layer, SGD(layer.parameters()), scaled("fp32", scale), clip_norm=1.0)
    before = weights_of(step)
    result = step(lambda m: m(torch.tensor([[1.0, bad, 2.0]])).sum())
    assert (result.num_nonfinite, result.skipped) == (1, True)
    assert identical(weights_of(step), before)
    assert step.loss_scale == scale / 2
    assert not step(lambda m: m(torch.ones(1, 3)).sum()).skipped
    assert not identical(weights_of(step), before)


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda p: SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1),
    "adam": lambda p: Adam(p, lr=0.01, amsgrad=True),
    "adamw-foreach": lambda p: AdamW(p, lr=0.01, weight_decay=0.1, foreach=True),
    "adamw-fused": lambda p: AdamW(p, lr=0.01, weight_decay=0.1, fused=True),
}


@pytest.mark.parametrize("products", ["fp32", "fp16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_step_leaves_no_trace(name: str, products: ProductFormat) -> None:
    """Weights, moments and step counts stay; later steps are as if it had not been."""
    ends = []
    for bad_at in (None, 2):
        step, loss = chain(scaled(products, 64.0), OPTIMIZERS[name], clip_norm=1.0)
        for k in range(4):
            if k == bad_at:
                before = copy.deepcopy((weights_of(step), step.optimizer.state_dict()))
                assert step(lambda m, loss=loss: loss(m, factor=math.inf)).skipped
                assert identical((weights_of(step), step.optimizer.state_dict()), before)
            assert not step(loss).skipped
        ends.append((weights_of(step), step.optimizer.state_dict(), step.loss_scale))
    assert identical(ends[0][:2], ends[1][:2])
    assert [end[2] for end in ends] == [64.0, 32.0]


def train_gpt(products: ProductFormat, initial: float | None) -> tuple[Any, ...]:
    """What three steps leave: losses and norms, weights, and the optimizer's state."""
    model, data = make_gpt(tiny.MODEL, seed=1), tiny.batch()
    optimizer, recipe = make_optimizer(model, tiny.TRAIN), scaled(products, initial)
    step = TrainStep(model, optimizer, recipe, clip_norm=1.0, backend="emulated")
    results = [step(lambda m: batch_loss(m, data)) for _ in range(3)]
    assert not any(r.skipped for r in results)
    return [(r.loss, r.grad_norm) for r in results], weights_of(step), optimizer.state_dict()


@pytest.mark.parametrize("products", ["fp32", "bf16"])
def test_a_scaler_changes_nothing_with_the_range_of_fp32(products: ProductFormat) -> None:
    """In fp16, the same model's gradients are partly subnormal and do depend on the scale."""
    plain = train_gpt(products, None)
    for scale in (2.0**-20, 1.0, 2.0**16, 2.0**30):
        assert identical(train_gpt(products, scale), plain), scale
    assert not identical(train_gpt("fp16", 2.0**10), train_gpt("fp16", 1.0))


@pytest.mark.parametrize(("start", "floor"), [(16, 0), (16, -5), (16, -24), (-3, -3)])
def test_a_forward_overflow_halves_the_scale_to_its_floor_and_ends(start: int, floor: int) -> None:
    step, loss = chain(scaled("fp16", 2.0**start, floor=2.0**floor), Adam)
    before = weights_of(step)
    for k in range(start, floor, -1):
        result = step(lambda m: loss(m, gain=1e5))
        assert (math.isnan(result.loss), result.skipped) == (True, True)
        assert (result.loss_scale, step.loss_scale) == (2.0**k, 2.0 ** (k - 1))
    with pytest.raises(LossScaleCollapse, match=f"fell to {2.0 ** (floor - 1):g}, below its floor"):
        step(lambda m: loss(m, gain=1e5))
    assert identical(weights_of(step), before)
    assert not step.optimizer.state


def adam_after(recipe: Recipe, factor: float, eps: float) -> list[Tensor]:
    """Weights and both moments after three Adam steps on the loss times `factor`."""
    step, loss = chain(recipe, lambda p: Adam(p, lr=0.01, eps=eps))
    for _ in range(3):
        step(lambda m: loss(m, factor=factor))
    states = step.optimizer.state.values()
    moments = [torch.cat([s[k].flatten() for s in states]) for k in ("exp_avg", "exp_avg_sq")]
    return [weights_of(step), *moments]


@pytest.mark.parametrize("eps", [0.0, 2.0**-4])
def test_adams_moments_tell_scaled_gradients_from_unscaled_ones(eps: float) -> None:
    """Without unscaling, eps acts as eps/S; without eps, only the moments show the mistake."""
    scale, plain = 2.0**10, scaled("fp32", None)
    right, wrong = adam_after(plain, 1.0, eps), adam_after(plain, scale, eps)
    assert identical(adam_after(scaled("fp32", scale), 1.0, eps), right)
    weights, first, second = adam_after(plain, 1.0, eps / scale)
    assert identical(wrong, [weights, first * scale, second * scale**2])
    assert identical(wrong[0], right[0]) == (eps == 0)
    assert not any(identical(w, r) for w, r in zip(wrong[1:], right[1:], strict=True))
