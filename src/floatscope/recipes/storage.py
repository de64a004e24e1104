"""Weights, master copies and optimizer states in the formats of a recipe, around any optimizer.

The optimizer computes in fp32. For the length of its step each parameter points to a working copy,
in an fp32 tensor, of what it starts from: the stored weight, or the master. Afterwards

    weights alone   w <- round(s)                                s: what the optimizer made
    master          m <- round(s), w <- nearest(m)
    Kahan           t = s + c in fp64, w <- nearest(t), c <- nearest(t - w)

and the working copy is dropped, so a step that raises leaves weights, masters and rests as they
were. "round" is to nearest even or stochastic, as the recipe says.

*Kahan.* c, the compensation or rest, has the weights' format and starts at zero. The optimizer
sees w and returns s = w + u, so t is w + c + u: the sum so far and its new update. t - w is exact,
so w + c misses t by half an ulp of c at most, and that is 2^-(2p+1) of w for p bits of precision,
as long as c is no subnormal: 2^-17 in bf16, whose pairs have 16 bits (Zamirai et al. 2020, arXiv
2010.06192; Collage, Yu et al. 2024, arXiv 2405.03637). Smaller updates are lost again. c is zero
where w is not finite.

*Where values are.* A parameter in fp32 stays an fp32 tensor whose values are in the format
(emulated); a parameter that is bf16 or fp16 itself stays so, if the recipe stores that format
(native), and its gradient is collected in fp32. Masters and moments are fp32 tensors, rests have
the dtype of their parameter. The same gradients give the same bits either way. Buffers, such as the
statistics of batch normalization, are left alone.

*Overflow* follows the standard: infinity, or NaN in a format without, so that it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from floatscope.errors import RecipeError
from floatscope.recipes.checks import check_dense
from floatscope.recipes.formats_of import Stored
from floatscope.recipes.keeping_out import kept_in_fp32
from floatscope.recipes.movement import MASTER, REST, Movement, StoredUpdate
from floatscope.recipes.optimizers import Optimizers, as_one
from floatscope.recipes.storage_checks import (
    check_apart,
    check_optimizer,
    check_parameter,
    check_state,
)
from floatscope.recipes.storage_states import States, nearest, round_in_place
from floatscope.recipes.storage_values import kahan, rounded, working_copies
from floatscope.rounding.cast import Cast
from floatscope.rounding.random_bits import StochasticKey

VERSION = 1
UNKNOWN = -1


@dataclass
class _Held:
    """A parameter of the optimizer, and what is kept beside it."""

    name: str
    parameter: nn.Parameter
    master: Tensor | None = None
    rest: Tensor | None = None
    version: int = UNKNOWN
    """Of the parameter when its master was last compared with it."""
    states: dict[str, Tensor] | None = None
    """Loaded, and to be put in the optimizer before its next step."""
    cast: Cast | None = None
    """To the format of the weights; None if this one stays in fp32."""

    @property
    def is_native(self) -> bool:
        return self.parameter.dtype is not torch.float32


class Storage:
    """Keeps what `optimizer` holds as `stored` says.

    Args:
        stored: the formats, and how updates are rounded.
        model: names the parameters. What else the optimizer holds is stored too, under the name
            "group 0, parameter 3".
        optimizer: any `torch.optim` optimizer that steps without a closure, or several.
        seed: of stochastic rounding. Random bits depend on it, the rank, the number of the step,
            the parameter's name and the element's place; not on threads or on what ran before.
        rank: of stochastic rounding. Replicas that hold the same weights need the same rank, or
            they drift apart.

    Raises:
        RecipeError: an optimizer that needs a closure, or a parameter in it that is not dense and
            plain, or neither fp32 nor of the stored format's own dtype (fp64, integer, complex); a
            pattern of `stored.keep` that names none; or optimizers that share a parameter.
    """

    def __init__(
        self,
        stored: Stored,
        model: nn.Module,
        optimizer: Optimizers,
        *,
        seed: int = 0,
        rank: int = 0,
    ) -> None:
        self.stored, self.model, self.optimizer = stored, model, as_one(optimizer)
        self.seed, self.rank = seed, rank
        self.num_steps = 0
        """Steps so far; those that a loss scaler skipped are none."""
        check_optimizer(self.optimizer)
        self._weights, self._master = nearest(stored.weights), nearest(stored.master or "fp32")
        self._gradients = nearest(stored.gradients)
        self._kept = kept_in_fp32(model, stored)
        self._states = States(stored, self.optimizer, self._kept)
        self._held: dict[int, _Held] = {}
        for name, parameter in self._parameters():
            check_parameter(parameter, name, self._how(parameter))

    def _how(self, parameter: Tensor) -> Stored:
        """How a parameter is stored."""
        return Stored() if id(parameter) in self._kept else self.stored

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What the optimizer holds; a tied parameter once, under its first name."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        seen = set()
        for i, group in enumerate(self.optimizer.param_groups):
            for j, parameter in enumerate(group["params"]):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield names.get(id(parameter), f"group {i}, parameter {j}"), parameter

    @torch.no_grad()
    def prepare(self) -> None:
        """Bring weights, states and, if there is one, the master into their formats.

        Masters are made from the weights as they come, and weights are the masters, rounded. Frozen
        fp32 parameters of the model are rounded too, since they are stored as well; frozen ones of
        another dtype are left alone. Called again, it takes in what the optimizer has been given
        since, and makes masters anew where the weights were changed from outside.

        Raises:
            RecipeError: a new parameter that cannot be stored, or two in the same memory.
        """
        check_apart(self._parameters())
        for name, parameter in self._parameters():
            held = self._held.get(id(parameter))
            if held is None or not self._agrees(held):
                check_parameter(parameter, name, self._how(parameter))
                self._states.check(parameter, name)
                self._held[id(parameter)] = self._made(name, parameter)
            self._states.round(parameter)
        for parameter in self.model.parameters():
            is_plain = parameter.layout is torch.strided and parameter.device.type != "meta"
            is_known = id(parameter) in self._held or id(parameter) in self._kept
            if not is_known and parameter.dtype is torch.float32 and is_plain:
                parameter.copy_(rounded(parameter.detach(), self._weights))

    def _made(self, name: str, parameter: nn.Parameter) -> _Held:
        held, how = _Held(name, parameter), self._how(parameter)
        held.cast = None if how != self.stored else self._weights
        weight = parameter.detach()
        if held.is_native:
            gradient, parameter.grad = parameter.grad, None
            parameter.grad_dtype = torch.float32
            parameter.grad = None if gradient is None else gradient.float()
            self._states.widen(parameter)
        if how.master:
            held.master = rounded(weight.float(), self._master).clone()
            weight = held.master
        if how.update == "kahan":
            held.rest = torch.zeros_like(parameter)
        parameter.copy_(rounded(weight, held.cast))
        held.version = parameter._version
        return held

    def _agrees(self, held: _Held) -> bool:
        """Whether a parameter is still its master, rounded; looks at values only after a change."""
        parameter = held.parameter
        if held.master is not None and held.version != parameter._version:
            own = rounded(held.master, held.cast)
            same = (own == parameter) | ((own != own) & (parameter != parameter))
            if not bool(same.all()):
                return False
        held.version = parameter._version
        return True

    @torch.no_grad()
    def accumulate(self) -> None:
        """Round the gradients to the format in which they are added up.

        To be called after the backward of each micro-batch, the first too. Backward adds to what is
        there in fp32, so the running sum is g <- nearest(g + new). Gradients are of the scaled
        loss; what overflows becomes infinite or NaN and is found by the check that follows.

        Raises:
            RecipeError: a gradient is sparse.
        """
        for name, parameter in self._parameters():
            check_dense(parameter, name)
            if parameter.grad is None or id(parameter) in self._kept:
                continue
            if self._gradients is not None:
                round_in_place(parameter.grad, self._gradients)

    @torch.no_grad()
    def step(self, call: Callable[[], object] | None = None) -> StoredUpdate:
        """Let the optimizer step, and store what it computed.

        Parameters without a gradient, and their states, are not touched. If anything raises,
        weights, masters and rests are as before; the optimizer's states may have moved.

        Args:
            call: steps the optimizer, with `optimizer.step` or by way of a scaler. Not to be called
                for a step that is skipped.

        Raises:
            RecipeError: before the optimizer's step for a sparse gradient, for a parameter that
                `prepare` has not seen, and for weights under a master that were changed by others;
                after it for a state of the optimizer that is not known.
        """
        moving = self._moving()
        with self._lent(moving) as aimed:
            (call or self.optimizer.step)()
            for held in moving:
                self._states.check(held.parameter, held.name)
        movement = Movement()
        for held, result in zip(moving, aimed, strict=True):
            self._store(held, result, movement)
            self._states.round(held.parameter)
        self.num_steps += 1
        return movement.result()

    def _moving(self) -> list[_Held]:
        """The parameters that have a gradient."""
        moving = []
        for name, parameter in self._parameters():
            check_dense(parameter, name)
            held = self._held.get(id(parameter))
            if held is None:
                raise RecipeError(f"{name} is new to storage; call its prepare() before a step.")
            if not self._agrees(held):
                raise RecipeError(
                    f"{name} is no longer what its master copy says: something beside the "
                    "optimizer changed it. Call prepare() to make the master anew from the weights."
                )
            if held.states is not None:
                self.optimizer.state[parameter].update(held.states)
                held.states = None
            if parameter.grad is not None:
                moving.append(held)
        return moving

    @contextmanager
    def _lent(self, moving: list[_Held]) -> Iterator[list[Tensor]]:
        """Parameters point to working copies inside; the list has what those became, after it."""
        aimed: list[Tensor] = []
        weights = [held.parameter.detach() for held in moving]
        starts = [(w, False) if h.master is None else (h.master, True)
                  for h, w in zip(moving, weights, strict=True)]  # fmt: skip
        try:
            for held, start in zip(moving, working_copies(starts), strict=True):
                if held.is_native:
                    self._states.widen(held.parameter)
                held.parameter.data = start
            yield aimed
            aimed += [held.parameter.detach() for held in moving]
        finally:
            for held, weight in zip(moving, weights, strict=True):
                held.parameter.data = weight

    def _store(self, held: _Held, aimed: Tensor, movement: Movement) -> None:
        """Put what the optimizer made of a parameter into storage."""
        parameter, old = held.parameter, held.parameter.detach()
        if held.master is not None:
            master = rounded(aimed, self._keyed(self._master, held.name, "master"))
            new = rounded(master, held.cast)
            movement.add(
                held.master, aimed, old, new, mode=MASTER, before=held.master, after=master
            )
            held.master = master
        elif held.rest is not None:
            new, rest = kahan(aimed, held.rest, held.cast)
            movement.add(old, aimed, old, new, mode=REST, before=held.rest, after=rest)
            held.rest = rest
        else:
            new = rounded(aimed, self._keyed(held.cast, held.name, "weight"))
            movement.add(old, aimed, old, new)
        parameter.copy_(new)
        held.version = parameter._version

    def _keyed(self, cast: Cast | None, name: str, role: str) -> Cast | None:
        """The cast with the recipe's rounding, and this step's key."""
        if cast is None or self.stored.update != "stochastic":
            return cast
        key = StochasticKey(self.seed, self.rank, self.num_steps, module=name, role=role)
        rules = replace(cast.rules, name="explicit", rounding="stochastic")
        return replace(cast, rules=rules, key=key.value())

    def state_dict(self) -> dict[str, Any]:
        """Masters, rests, the number of steps, and what they belong to; no copies.

        Weights and states are in the model's and the optimizer's own. For native parameters the
        states are here too: an optimizer's `load_state_dict` casts them to the parameter's dtype.
        """
        held = {h.name: h for h in self._held.values()}
        native = {
            name: self._states.of(h.parameter) if h.states is None else h.states
            for name, h in held.items()
            if h.is_native
        }
        stored = asdict(self.stored).items()  # tuples as lists, which JSON gives back
        return {
            "version": VERSION,
            "stored": {k: list(v) if isinstance(v, tuple) else v for k, v in stored},
            "seed": self.seed,
            "rank": self.rank,
            "num_steps": self.num_steps,
            "masters": {name: h.master for name, h in held.items() if h.master is not None},
            "rests": {name: h.rest for name, h in held.items() if h.rest is not None},
            "states": native,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state, after or before the model and the optimizer have loaded theirs.

        Tensors are copied. That the weights fit their masters is checked at the next step.

        Raises:
            RecipeError: the state is of another recipe, seed, rank, model or version, or
                `prepare` was not called. Nothing is changed then.
        """
        if not self._held:
            raise RecipeError("call prepare() before load_state_dict().")
        own = self.state_dict()
        check_state(state, own)
        for held in self._held.values():
            for kind, field in (("masters", "master"), ("rests", "rest")):
                if held.name in own[kind]:
                    like = own[kind][held.name]
                    loaded = torch.empty_like(like).copy_(state[kind][held.name])
                    setattr(held, field, loaded)
            if held.is_native:
                device = held.parameter.device
                states = state["states"][held.name]
                # Numbers stay where they were: on the CPU for most optimizers.
                held.states = {
                    name: value.to(device if value.ndim else value.device, copy=True)
                    for name, value in states.items()
                }
            held.version = UNKNOWN
        self.num_steps = state["num_steps"]
