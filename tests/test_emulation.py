"""The emulation engine against Torch's own fp16, wherever backward runs and whatever recomputes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from floatscope.errors import RecipeError
from floatscope.lab.gpt_config import Attention, GPTConfig
from floatscope.lab.model import GPT, make_gpt
from floatscope.lab.run.train import batch_loss
from floatscope.recipes import recipe
from floatscope.recipes.compute import compute
from floatscope.recipes.emulation import Emulation
from tests import tiny

HALF = torch.float16


def tiny_gpt(attention: Attention = "fused") -> GPT:
    return make_gpt(GPTConfig(**{**tiny.MODEL.__dict__, "attention": attention}), seed=1)


def gradient(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "product",
    [
        lambda a, b: torch.mm(a, b),
        lambda a, b: torch.bmm(a.expand(3, -1, -1), b.expand(3, -1, -1)),
        lambda a, b: torch.addmm(a[0, 0], a, b, beta=0.5, alpha=2.0),
        lambda a, b: torch.baddbmm(
            a[:1, :1].expand(3, 1, 1), a.expand(3, -1, -1), b.expand(3, -1, -1)
        ),
        lambda a, b: torch.mv(a, b[:, 0]),
        lambda a, b: torch.einsum("ij,jk->ik", a, b),
        lambda a, b: a @ b,
        lambda a, b: F.linear(a, b.T),
        lambda a, b: F.conv1d(a[None], b.T[:, :6, None].contiguous()) if a.shape[0] == 6 else a,
    ],
)
def test_products_are_fp32_products_rounded_once(
    product: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype
) -> None:
    a, b = randn(6, 40).to(dtype), randn(40, 5, seed=1).to(dtype)
    with Emulation(dtype) as emulation:
        emulated = product(a, b)
    assert emulation.num_products == 1
    assert emulated.dtype is dtype
    assert torch.equal(emulated, product(a.float(), b.float()).to(dtype))


def test_attention_rounds_its_output_once_and_keeps_its_strides() -> None:
    q, k, v = (randn(2, 3, 16, 8, seed=s).half() for s in range(3))
    native = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    with Emulation(HALF) as emulation:
        emulated = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert emulation.num_products == 1
    wide = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True)
    assert torch.equal(emulated, wide.half())
    assert emulated.stride() == native.stride()
    torch.testing.assert_close(emulated, native, rtol=2e-3, atol=2e-3)


def step_gradient(
    *, inside: bool, reentrant: bool | None, attention: Attention
) -> tuple[Tensor, int]:
    """One fp16 backward, inside or outside the context, with one kind of checkpointing or none."""
    model, data = tiny_gpt(attention), tiny.batch()

    def loss_of() -> Tensor:
        x_BTD = model.embedding(data.inputs_BT)
        for block in model.blocks:
            if reentrant is None:
                x_BTD = block(x_BTD)
            else:
                x_BTD = checkpoint(block, x_BTD, use_reentrant=reentrant)
        logits = F.linear(model.norm(x_BTD), model.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), data.targets_BT.flatten()) * 1024

    emulation = Emulation(HALF)
    with emulation, torch.autocast("cpu", dtype=HALF):
        loss = loss_of()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    return gradient(model), emulation.num_products


# Two blocks: 7 linears and 1 fused (2 materialized) products each, and the head. Backward needs two
# for each linear and matmul, one for fused attention. Recomputation repeats the blocks' forward;
# the non-reentrant kind stops as soon as it has what backward needs, before each block's last.
FORWARD = {"fused": 17, "materialized": 19}
BACKWARD = {"fused": 32, "materialized": 38}


@pytest.mark.parametrize("attention", ["fused", "materialized"])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("reentrant", [None, True, False])
def test_same_bits_wherever_backward_runs(
    *, inside: bool, reentrant: bool | None, attention: Attention
) -> None:
    expected, _ = step_gradient(inside=True, reentrant=None, attention=attention)
    actual, num_products = step_gradient(inside=inside, reentrant=reentrant, attention=attention)
    assert torch.equal(actual, expected)
    recomputed = {None: 0, True: FORWARD[attention] - 1, False: FORWARD[attention] - 3}[reentrant]
    assert num_products == FORWARD[attention] + BACKWARD[attention] + recomputed


@pytest.mark.parametrize("attention", ["fused", "materialized"])
def test_agrees_with_native_fp16_up_to_accumulation_order(attention: Attention) -> None:
    emulated, _ = step_gradient(inside=True, reentrant=None, attention=attention)
    model, data = tiny_gpt(attention), tiny.batch()
    with torch.autocast("cpu", dtype=HALF):
        loss = batch_loss(model, data) * 1024
    loss.backward()
    native = gradient(model)
    exact_model = tiny_gpt(attention)
    (batch_loss(exact_model, data) * 1024).backward()
    exact = gradient(exact_model)

    def distance(a: Tensor, b: Tensor) -> float:
        return ((a - b).norm() / exact.norm()).item()

    assert 0 < distance(emulated, native) < 1.5e-3
    assert distance(emulated, exact) < 1.1 * distance(native, exact)


def test_nothing_is_left_behind_after_an_exception_in_backward() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, *grads: Tensor) -> Tensor:
            raise RuntimeError("on purpose")

    weight = randn(4, 4).requires_grad_()
    with Emulation(HALF), torch.autocast("cpu", dtype=HALF):
        y = Fails.apply(F.linear(randn(2, 4), weight))
        y = F.linear(y, weight).float().sum()
    with pytest.raises(RuntimeError, match="on purpose"):
        y.backward()
    with torch.autocast("cpu", dtype=HALF):
        assert F.linear(randn(2, 4), weight).dtype is HALF  # runs natively again


def test_a_custom_function_at_the_end_is_reached_through_the_model() -> None:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)  # type: ignore[attr-defined]
            return x @ w

        @staticmethod
        def backward(ctx: object, *grads: Tensor) -> tuple[Tensor, Tensor]:
            x, w = ctx.saved_tensors  # type: ignore[attr-defined]
            return grads[0] @ w.T, x.T @ grads[0]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(randn(4, 4).half())

        def forward(self, x: Tensor) -> Tensor:
            return Scale.apply(x, self.w)

    model = Model()
    x = randn(3, 4, seed=1).half().requires_grad_()
    with compute(recipe("fp16-mixed"), model, "emulated"):
        y = model(x)
    y.backward(torch.ones_like(y))
    assert model.w.grad is not None
    assert torch.equal(model.w.grad, (x.float().T @ torch.ones(3, 4)).half())


def test_inference_mode_is_emulated_too() -> None:
    model, data = tiny_gpt(), tiny.batch()
    with Emulation(HALF) as emulation, torch.autocast("cpu", dtype=HALF), torch.inference_mode():
        batch_loss(model, data)
    assert emulation.num_products == FORWARD["fused"]


def test_multi_head_attention_is_reached() -> None:
    attention = nn.MultiheadAttention(16, 2, batch_first=True)
    x = randn(2, 5, 16)
    with Emulation(HALF) as emulation, torch.autocast("cpu", dtype=HALF):
        y, _ = attention(x, x, x)
    assert emulation.num_products == 4  # in-projection, two products or one fused pair, out
    (y.float().sum()).backward()
    assert emulation.num_products > 4


def test_an_lstm_is_reached_product_by_product_or_refused() -> None:
    lstm = nn.LSTM(8, 8).half()
    x = randn(3, 2, 8).half()
    with Emulation(HALF) as emulation:
        y, _ = lstm(x)
    assert emulation.num_products == 4  # the inputs' at once, then one each of three steps
    with torch.no_grad():
        native, _ = lstm(x)
    torch.testing.assert_close(y, native, rtol=2e-3, atol=2e-3)


def test_unreachable_products_are_refused_by_name() -> None:
    a, b = randn(3, 4).half(), randn(5, 4).half()
    with (
        Emulation(HALF),
        pytest.raises(RecipeError, match=r"aten\._cdist_forward.*\[3, 4\] torch.float16"),
    ):
        torch.ops.aten._cdist_forward(a, b, 2.0, None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "function",
    [
        F.silu, F.mish, F.gelu, F.softplus, F.hardswish, F.elu, F.glu, F.softmax, F.log_softmax,
        F.logsigmoid,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_what_multiplies_no_matrices_has_the_bits_it_has_outside(
    function: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    about = {"dim": -1} if "softmax" in function.__name__ else {}
    x, width = (3 * randn(64, 40)).to(dtype), 20 if function is F.glu else 40
    upstream = randn(64, width, seed=1).to(dtype)

    def result() -> tuple[Tensor, Tensor]:
        given = x.clone().requires_grad_()
        y = function(given, **about)
        y.backward(upstream)
        assert given.grad is not None
        return y.detach(), given.grad

    y, gradient = result()
    with Emulation(dtype):
        emulated, emulated_gradient = result()
    assert torch.equal(emulated, y)
    assert torch.equal(emulated_gradient, gradient)


def test_products_in_other_dtypes_pass_through() -> None:
    a, b = randn(6, 40), randn(40, 5, seed=1)
    with Emulation(HALF) as emulation:
        assert torch.equal(a @ b, torch.mm(a, b))
    assert emulation.num_products == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile's own imports
def test_a_compiled_model_is_refused() -> None:
    model = torch.compile(nn.Linear(4, 4))
    with (
        pytest.raises(RecipeError, match="compiled"),
        compute(recipe("fp16-mixed"), model, "emulated"),  # type: ignore[arg-type]
    ):
        pass


def test_hooks_of_the_context_are_removed() -> None:
    model = tiny_gpt()
    with compute(recipe("fp16-mixed"), model, "emulated"):
        assert len(model._forward_hooks) == 1
    assert not model._forward_hooks


@pytest.mark.parametrize("name", ["fp32", "bf16-mixed", "fp16-mixed"])
def test_parameters_gradients_and_loss_stay_fp32(name: str) -> None:
    model, data = tiny_gpt(), tiny.batch()
    with compute(recipe(name), model, "emulated"):
        loss = batch_loss(model, data)
    loss.backward()
    assert loss.dtype is torch.float32
    assert all(p.dtype is p.grad.dtype is torch.float32 for p in model.parameters())  # type: ignore[union-attr]
