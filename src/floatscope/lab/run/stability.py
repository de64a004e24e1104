"""What announces instability, step by step: attention logits, log-normalizer, Adam's epsilon.

Three things are known to go wrong as the learning rate grows (Wortsman et al. 2023,
arXiv:2309.14322): attention logits grow until the softmax is one-hot, the output's log-normalizer
drifts, and gradients shrink until Adam divides by its epsilon. Looking changes nothing: what is
computed here has no gradient and draws no random numbers.

Shape suffixes as in `lab/model.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from floatscope.lab.model import GPT, SelfAttention


@dataclass(frozen=True, kw_only=True)
class Signs:
    """What one step showed.

    Gradients are as Adam receives them: unscaled and clipped. Where the gradient is not finite,
    what is said of it is NaN and the name empty.
    """

    max_attention_logit: float
    """Largest score before softmax, over layers, heads and visible positions; NaN if one is."""
    max_log_normalizer: float
    """Largest log of the sum of exponentials of the outputs, over positions."""
    mean_log_normalizer: float
    min_gradient_rms: float
    """Smallest root mean square of a parameter's gradient."""
    min_gradient_rms_of: str
    """The parameter's name."""
    min_gradient_rms_by_eps: float
    """The same divided by Adam's epsilon: near 1 and below, updates shrink with the gradient."""
    share_below_eps: float
    """Of all gradient elements, those smaller in magnitude than epsilon."""


class Watch:
    """Watches the training steps of `model`, not its evaluations.

    Args:
        model: watched from now on.
        optimizer: an Adam; its first group's epsilon is the one compared with.
    """

    def __init__(self, model: GPT, optimizer: Optimizer) -> None:
        self._model = model
        self._eps = float(optimizer.param_groups[0]["eps"])
        self._logits: list[float] = []
        self._normalizers = (math.nan, math.nan)
        self._gradients: dict[str, Tensor] = {}
        for module in model.modules():
            if isinstance(module, SelfAttention):
                module.look = self._see_scores
        model.register_forward_hook(self._see_outputs)

    def see_gradients(self) -> None:
        """Take the present gradients, unscaled and not yet clipped."""
        named = self._model.named_parameters()
        self._gradients = {name: p.grad.clone() for name, p in named if p.grad is not None}

    def signs(self, grad_norm: float, clip_norm: float) -> Signs:
        """What the step that has just ended showed.

        Args:
            grad_norm: 2-norm of its unclipped gradient.
            clip_norm: what it was clipped to.
        """
        rms, name, below = math.nan, "", math.nan
        if math.isfinite(grad_norm):
            factor = min(1.0, clip_norm / (grad_norm + 1e-6))  # as torch.nn.utils clips
            clipped = {n: g * factor for n, g in self._gradients.items()}
            rms, name = min((g.square().mean().sqrt().item(), n) for n, g in clipped.items())
            small = sum(int((g.abs() < self._eps).sum()) for g in clipped.values())
            below = small / sum(g.numel() for g in clipped.values())
        return Signs(
            max_attention_logit=_largest(self._logits),
            max_log_normalizer=self._normalizers[0],
            mean_log_normalizer=self._normalizers[1],
            min_gradient_rms=rms,
            min_gradient_rms_of=name,
            min_gradient_rms_by_eps=rms / self._eps,
            share_below_eps=below,
        )

    def _see_scores(self, q_BNTH: Tensor, k_BNTH: Tensor) -> None:
        if not torch.is_grad_enabled():  # an evaluation
            return
        T, H = q_BNTH.shape[-2:]
        with torch.no_grad(), torch.autocast(q_BNTH.device.type, enabled=False):
            scores_BNTT = q_BNTH.float() @ k_BNTH.float().transpose(-2, -1) * H**-0.5
            future_TT = torch.ones(T, T, dtype=torch.bool, device=q_BNTH.device).triu(1)
            self._logits.append(scores_BNTT.masked_fill(future_TT, -torch.inf).amax().item())

    def _see_outputs(self, _model: Any, _inputs: Any, logits_BTV: Any) -> None:
        if not torch.is_grad_enabled():
            return
        with torch.no_grad():
            normalizer_BT = logits_BTV.float().logsumexp(-1)
            self._normalizers = (normalizer_BT.amax().item(), normalizer_BT.mean().item())


def _largest(values: list[float]) -> float:
    """The largest, NaN if one is; the list is empty afterwards."""
    largest = torch.tensor(values, dtype=torch.float64).amax().item()
    values.clear()
    return largest
