"""The laboratory's model: its exact size, and the bytes that it saves for backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from floatscope.lab.gpt_config import Attention, GPTConfig
from floatscope.lab.model import make_gpt, rotary_tables, rotate
from tests import tiny


def test_parameter_count() -> None:
    model = make_gpt(GPTConfig(), seed=0)
    parameters = dict(model.named_parameters())
    assert sum(p.numel() for p in parameters.values()) == 3_688_704
    assert len(parameters) == 38
    assert all(p.dtype is torch.float32 for p in parameters.values())


def saved_bytes(attention: Attention, dtype: torch.dtype | None) -> int:
    """Bytes saved for backward at 32 x 256, by storage, parameters and buffers left out."""
    model = make_gpt(GPTConfig(attention=attention), seed=0)
    own = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
    data = tiny.batch(model.config, size=32)
    saved: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage.nbytes()
        return t

    with (
        torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
    ):
        loss = F.cross_entropy(model(data.inputs_BT).flatten(0, 1), data.targets_BT.flatten())
    assert loss.requires_grad
    return sum(saved.values())


@pytest.mark.parametrize(
    ("attention", "dtype", "expected"),
    [
        ("fused", None, 823_558_148),
        ("materialized", None, 1_057_390_596),
        ("fused", torch.bfloat16, 579_403_780),
        ("materialized", torch.bfloat16, 695_795_716),
        ("fused", torch.float16, 579_403_780),
        ("materialized", torch.float16, 695_795_716),
    ],
)
def test_saved_activations_to_the_byte(
    attention: Attention, dtype: torch.dtype | None, expected: int
) -> None:
    """The form of the model is fixed by these totals, measured when the design was made."""
    assert saved_bytes(attention, dtype) == expected


def test_both_attentions_agree() -> None:
    data = tiny.batch()
    results = []
    for attention in ("fused", "materialized"):
        config = GPTConfig(**{**tiny.MODEL.__dict__, "attention": attention})
        results.append(make_gpt(config, seed=3)(data.inputs_BT))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_attention_is_causal() -> None:
    model = make_gpt(tiny.MODEL, seed=3)
    ids = tiny.batch().inputs_BT
    changed = ids.clone()
    changed[:, 9] = (changed[:, 9] + 1) % tiny.MODEL.vocab_size
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9:], after[:, 9:])


def test_rotation_depends_on_distance_alone() -> None:
    """The product of two rotated vectors is a function of the difference of their positions."""
    cos_TH, sin_TH = rotary_tables(32, 8)
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 8, generator=generator)
    q_T = rotate(q.expand(1, 1, 32, 8), cos_TH, sin_TH)[0, 0]
    k_T = rotate(k.expand(1, 1, 32, 8), cos_TH, sin_TH)[0, 0]
    scores = q_T @ k_T.T
    for offset in (0, 1, 5, -3):
        diagonal = scores.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(q_T.norm(dim=-1), q.norm().expand(32))


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    one = make_gpt(tiny.MODEL, seed=5).state_dict()
    torch.manual_seed(2)
    two = make_gpt(tiny.MODEL, seed=5).state_dict()
    other = make_gpt(tiny.MODEL, seed=6).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["embedding.weight"], other["embedding.weight"])


def test_impossible_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="width 256 must split into 7 heads"):
        GPTConfig(num_heads=7)
