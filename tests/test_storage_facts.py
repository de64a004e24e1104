"""What the literature says of 16-bit weights and moments, reproduced; exact where it is exact.

Numbers are from Zamirai et al. 2020 (arXiv 2010.06192), Collage (Yu et al. 2024, arXiv 2405.03637),
Ozkara et al. 2025 (arXiv 2502.20566), FP8-LM (Peng et al. 2023, arXiv 2310.18313) and bug reports
of frozen bf16 weights, moving averages and moments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from floatscope.recipes.formats_of import Stored
from floatscope.recipes.movement import StoredUpdate
from floatscope.recipes.storage import Storage
from floatscope.rounding.tensors import round_to

BF16, FP16 = Stored(weights="bf16"), Stored(weights="fp16")
STOCHASTIC = Stored(weights="bf16", update="stochastic")
KAHAN = Stored(weights="bf16", update="kahan")
MASTER = Stored(weights="bf16", master="fp32")


class Weight(nn.Module):
    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(values.clone())


def stored(
    how: Stored,
    values: Tensor,
    make: Callable[[Iterable[nn.Parameter]], Optimizer],
    **more: Any,
) -> tuple[Weight, Storage]:
    model = Weight(values)
    storage = Storage(how, model, make(model.parameters()), **more)
    storage.prepare()
    return model, storage


def after(how: Stored, values: Tensor, update: Tensor | float) -> Tensor:
    """Weights after one update of SGD, which adds `update` to them."""
    model, storage = stored(how, values, lambda p: SGD(p, lr=1.0))
    model.w.grad = torch.zeros_like(values) - update
    storage.step()
    return model.w.detach()


# Where an update is lost


def test_a_weight_of_one_in_bf16_moves_neither_down_2_to_minus_9_nor_up_2_to_minus_8() -> None:
    """The bounds are ties, and 1 is even; one ulp of fp32 more, and it moves by a whole step."""
    one = torch.ones(1)
    for bound, step in ((-(2.0**-9), -(2.0**-8)), (2.0**-8, 2.0**-7)):
        share = torch.linspace(0, 1, 1000)
        assert (after(BF16, torch.ones(1000), share * bound) == 1).all()
        beyond = bound + math.copysign(2.0**-23, bound)
        assert after(BF16, one, beyond).item() == 1 + step
    odd = 1 + 2.0**-7  # here ties go away, to the even neighbors
    assert after(BF16, one * odd, 2.0**-8).item() == 1 + 2.0**-6
    assert after(BF16, one * odd, -(2.0**-8)).item() == 1


@pytest.mark.parametrize(("how", "precision"), [(BF16, 8), (FP16, 11)])
def test_the_ratio_of_weight_and_update_decides(how: Stored, precision: int) -> None:
    """|w| / |u| above 512 is lost, below 256 never (fp16: 4096, 2048); for every significand."""
    w = 1 + torch.arange(2 ** (precision - 1)) * 2.0 ** (1 - precision)
    surely, never = 2.0 ** (precision + 1), 2.0**precision
    for sign in (-1.0, 1.0):
        for octave in (2.0**-6, 1.0, 2.0**9):
            small, large = w * octave / (surely * 1.001), w * octave / (never * 0.999)
            assert torch.equal(after(how, w * octave, sign * small), w * octave)
            assert (after(how, w * octave, sign * large) != w * octave).all()


@pytest.mark.parametrize(
    ("lr", "moved", "plain"), [(6e-4, 0.0, -0.06), (1.9e-3, 0.0, -0.19), (2.1e-3, -0.39, -0.21)]
)
def test_adamw_on_a_bf16_gain_of_one(lr: float, moved: float, plain: float) -> None:
    """B32: it stands still up to lr 1.9e-3 and is nearly twice too fast at 2.1e-3."""
    for how, expected in ((BF16, moved), (Stored(), plain), (MASTER, plain), (KAHAN, plain)):
        model, storage = stored(how, torch.ones(1), lambda p: AdamW(p, lr=lr))
        for _ in range(100):
            model.w.grad = torch.ones(1)
            update = storage.step()
        assert model.w.item() - 1 == pytest.approx(expected, abs=0.005)
        if how == BF16:
            assert update.lost == (1 if moved == 0 else 0)
            assert update.quality == pytest.approx(0 if moved == 0 else 2.0**-8 / lr, rel=0.01)


@pytest.mark.parametrize(
    ("lr", "share", "digits"),
    [(3e-6, 0.961, 3), (1e-5, 0.84, 2), (3e-5, 0.696, 3), (1e-4, 0.12, 2), (3e-4, 0.0, 3)],
)
def test_share_of_adamw_updates_that_are_swallowed(lr: float, share: float, digits: int) -> None:
    """For w ~ N(0, 0.02²) in bf16; the tolerance is half a digit and 4.5 deviations."""
    n = 1 << 20
    generator = torch.Generator().manual_seed(0)
    model, storage = stored(
        BF16, torch.randn(n, generator=generator) * 0.02, lambda p: AdamW(p, lr=lr)
    )
    model.w.grad = torch.randn(n, generator=generator)
    update = storage.step()
    assert update.of == n
    tolerance = 0.5 * 10.0**-digits + 4.5 * math.sqrt(share * (1 - share) / n)
    assert update.lost / n == pytest.approx(share, abs=tolerance)
    assert update.unmoved == update.lost


# What repairs it


def average(how: Stored, n: int, seed: int = 0) -> tuple[Tensor, StoredUpdate]:
    """B34, a moving average with decay 0.9999 toward 1.5 from 1: 1000 steps of SGD at lr 1e-4."""
    model, storage = stored(how, torch.ones(n), lambda p: SGD(p, lr=1e-4), seed=seed)
    for _ in range(1000):
        model.w.grad = model.w.detach() - 1.5
        update = storage.step()
    return model.w.detach(), update


EXACT = 1.5 - 0.5 * (1 - 1e-4) ** 1000  # 1.0475836


def test_nearest_stalls_in_bf16_and_fp16() -> None:
    for how in (BF16, FP16):
        w, update = average(how, 4)
        assert (w == 1.0).all()
        assert (update.lost, update.of, update.quality) == (4, 4, 0.0)
    w, update = average(Stored(), 4)
    assert w[0].item() == pytest.approx(EXACT, abs=1e-5)
    assert (update.lost, update.quality) == (0, 1.0)


def test_a_master_repairs_the_stall() -> None:
    """The gradient is taken at the rounded weight, half a step of 2^-7 away at most."""
    w, update = average(MASTER, 4)
    slack = 1000 * 1e-4 * 2.0**-8 + 2.0**-8
    assert w[0].item() == pytest.approx(EXACT, abs=slack)
    assert (update.lost, update.quality) == (0, 1.0)
    assert update.unmoved == 4


def test_kahan_repairs_the_stall() -> None:
    """As the master, and each of the 1000 steps misses by at most 2^-17 of 1.05."""
    model, storage = stored(KAHAN, torch.ones(4), lambda p: SGD(p, lr=1e-4))
    exact = 1.0
    for _ in range(1000):
        gradient = model.w.detach() - 1.5
        exact -= 1e-4 * gradient[0].item()
        model.w.grad = gradient
        update = storage.step()
    whole = model.w + storage.state_dict()["rests"]["w"]
    assert whole[0].item() == pytest.approx(exact, abs=1000 * 1.05 * 2.0**-17)
    slack = 1000 * 1e-4 * 2.0**-8 + 2.0**-8
    assert model.w[0].item() == pytest.approx(EXACT, abs=slack + 1000 * 1.05 * 2.0**-17)
    assert update.lost == 0
    assert update.quality == pytest.approx(1.0, abs=2.0**-17 / 4.5e-5)
    assert update.unmoved == 4


def test_stochastic_rounding_repairs_the_stall() -> None:
    """On average. Each step adds u (ulp − u) to the variance; the pull toward 1.5 shrinks it."""
    n = 4096
    w, update = average(STOCHASTIC, n)
    variance = sum(
        u * (2.0**-7 - u) for u in (1e-4 * 0.5 * (1 - 1e-4) ** step for step in range(1000))
    )
    tolerance = 4.5 * math.sqrt(variance / n)
    assert w.double().mean().item() == pytest.approx(EXACT, abs=tolerance)
    assert tolerance < 0.1 * (EXACT - 1)
    assert w.double().var().item() == pytest.approx(variance, rel=0.15)
    # Nearly all stand still in a step, and the few that move do so by 2^-7.
    assert update.lost > 0.98 * n
    u = 4.5e-5
    assert update.quality == pytest.approx(1, abs=4.5 * math.sqrt(2.0**-7 / u / n))


def test_stochastic_roundings_error_is_twice_that_of_nearest() -> None:
    """Mean squares ulp²/6 and ulp²/12 over all fp32 offsets between two neighbors.

    The square of a stochastic error, in ulp², has a variance below 1/15 − 1/36.
    """
    n = 1 << 20
    offsets = (torch.arange(n) % (1 << 16)) * 2.0**-23
    exact = 1 + offsets
    errors = {}
    for how in (BF16, STOCHASTIC):
        rounded = after(how, torch.ones(n), offsets)
        errors[how.update] = (rounded - exact).double().square().mean().item() / 2.0**-14
    assert errors["nearest"] == pytest.approx(1 / 12, rel=1e-8)
    assert errors["stochastic"] == pytest.approx(1 / 6, abs=4.5 * math.sqrt((1 / 15 - 1 / 36) / n))


def test_replicas_agree_only_with_the_same_random_bits() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    replicas = []
    for seed, rank in ((1, 0), (1, 0), (2, 0), (1, 1)):
        model, storage = stored(STOCHASTIC, values, lambda p: SGD(p, lr=1e-3), seed=seed, rank=rank)
        for step in range(5):
            model.w.grad = torch.randn(1000, generator=torch.Generator().manual_seed(step))
            storage.step()
        replicas.append(model.w.detach())
    assert torch.equal(replicas[0], replicas[1])
    assert not torch.equal(replicas[0], replicas[2])
    assert not torch.equal(replicas[0], replicas[3])


def test_masters_made_again_from_bf16_weights_lose_once_and_little() -> None:
    """B39: less than 2^-8 of a weight, on average 2.2 optimizer steps at lr 1e-5."""
    n = 1 << 18
    values = torch.randn(n, generator=torch.Generator().manual_seed(0)) * 0.02
    _, first = stored(MASTER, values, lambda p: SGD(p))
    second = Storage(MASTER, first.model, first.optimizer)
    second.prepare()
    lost = (second.state_dict()["masters"]["w"] - values).abs().double()
    assert (lost <= 2.0**-8 / (1 + 2.0**-8) * values.abs()).all()
    assert lost.mean().item() / 1e-5 == pytest.approx(2.2, abs=0.05)


# Moments


def second_moment(beta2: float, form: str, start: Tensor, gradient: float, steps: int) -> Tensor:
    """Adam's second moment after so many steps with one gradient."""
    how = Stored(moments=("fp32", form))
    model, storage = stored(
        how, torch.zeros(start.shape), lambda p: Adam(p, betas=(0.9, beta2), foreach=False)
    )
    model.w.grad = torch.full_like(start, gradient)
    storage.step()
    moment = storage.optimizer.state[model.w]["exp_avg_sq"]
    moment.copy_(start)
    for _ in range(steps):
        storage.step()
    return storage.optimizer.state[model.w]["exp_avg_sq"]


def test_a_bf16_second_moment_does_not_decay_at_0_999() -> None:
    """Nor at any beta2 above 1 − 2^-9, for any significand; exactly, it would be 0.05 times."""
    start = 1 + torch.arange(128) * 2.0**-7
    assert torch.equal(second_moment(0.999, "bf16", start, 0.0, 3000), start)
    exact = second_moment(0.999, "fp32", start, 0.0, 3000)
    assert (exact / start).tolist() == pytest.approx([0.999**3000] * 128, rel=1e-3)
    assert exact[0].item() == pytest.approx(0.050, abs=0.0005)
    assert torch.equal(second_moment(1 - 2.0**-9 + 2.0**-20, "bf16", start, 0.0, 1), start)


def test_a_bf16_second_moment_decays_at_0_95() -> None:
    """Each of 100 steps rounds by at most 2^-8; the exact factor is 0.0059."""
    start = 1 + torch.arange(128) * 2.0**-7
    ratio = second_moment(0.95, "bf16", start, 0.0, 100) / start
    exact = 0.95**100
    assert (ratio > exact * (1 - 2.0**-8) ** 100).all()
    assert (ratio < exact * (1 + 2.0**-8) ** 100).all()
    assert ratio.mean().item() == pytest.approx(exact, rel=0.1)


def test_a_bf16_second_moment_does_not_follow_its_gradients() -> None:
    """B48: from 1 toward 0.25, after 1000 steps it is still 1, and 0.526 in fp32."""
    start = torch.ones(1)
    assert second_moment(0.999, "bf16", start, 0.5, 1000).item() == 1.0
    assert second_moment(0.999, "fp32", start, 0.5, 1000).item() == pytest.approx(0.526, abs=5e-4)
    assert round_to(torch.tensor(0.999), "bf16").item() == 1.0


@pytest.mark.parametrize(("form", "smallest"), [("fp16", 2.0**-24), ("e4m3fn", 2.0**-9)])
def test_a_second_moment_without_a_scale_underflows(form: str, smallest: float) -> None:
    """FP8-LM: in fp16, g² is zero up to |g| = 2^-12.5 = 1.73e-4; in e4m3 up to 2^-5."""
    edge = math.sqrt(smallest / 2)
    for factor, is_zero in ((0.999, True), (1.001, False)):
        moment = second_moment(0.0, form, torch.zeros(1), edge * factor, 1)
        assert moment.item() == (0.0 if is_zero else smallest)
    if form == "fp16":
        assert edge == pytest.approx(1.73e-4, abs=5e-7)
