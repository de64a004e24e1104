"""Probe a subject: paper, then reality, state by state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from floatscope.errors import StudyError
from floatscope.lab.models import trained_parameters
from floatscope.lab.probe import backward, compare, paper
from floatscope.lab.probe.backward import Pass
from floatscope.lab.probe.records import Backward, PassRecord, Probe, StateProbe
from floatscope.lab.probe.subject import State, Subject
from floatscope.lab.run.environment import environment
from floatscope.recipes import Recipe, recipe
from floatscope.recipes.backend import choose_backend
from floatscope.recipes.compute import device_of
from floatscope.recipes.formats_of import Stored
from floatscope.spectrum.predict import float_format
from floatscope.spectrum.spectrum import Spectrum

RECIPES = ("fp16-mixed", "bf16-mixed")
SCALES = (0, 8, 16, 24)
"""Exponents of the scales at which 16-bit passes really run."""

Announce = Callable[[str], AbstractContextManager[object]]


def probe(
    subject: Subject,
    *,
    recipes: Sequence[str] = RECIPES,
    exponents: Sequence[int] = SCALES,
    backend: str = "auto",
    announce: Announce = lambda _: nullcontext(),
) -> Probe:
    """Probe every state of a subject.

    Args:
        subject: what to probe; its models are left as they were.
        recipes: whose products the passes really run in; fp32 is the reference and not among them.
        exponents: k of the scales 2^k that the loss is multiplied by in these passes.
        backend: who computes 16-bit products.
        announce: told what happens next, and held open while it does.

    Raises:
        RecipeError: no such recipe, or it cannot be computed on the model.
        StudyError: nothing to train, no loss, no 16-bit recipe, or a gradient that is not finite
            in fp32 already.
    """
    chosen = {r.products: r for r in map(recipe, recipes) if r.products != "fp32"}
    for other in chosen.values():
        if other.operands is not None or other.stored != Stored():
            raise StudyError(
                f"the probe runs products in 16 bits, and {other.name} does more than that. Name "
                "fp16-mixed or bf16-mixed with --recipe."
            )
    if not chosen:
        raise StudyError(
            f"the probe compares 16-bit products with fp32, and {', '.join(recipes) or 'nothing'} "
            "has none. Name another with --recipe, such as fp16-mixed."
        )
    states = tuple(
        _probe_state(state, [*chosen.values()], exponents, backend, announce)
        for state in subject.states
    )
    used = {p.backend for state in states for p in state.passes}
    return Probe(
        label=subject.label,
        origin=subject.origin,
        environment=environment(", ".join(sorted(used))),
        states=states,
    )


def _probe_state(
    state: State,
    recipes: Sequence[Recipe],
    exponents: Sequence[int],
    backend: str,
    announce: Announce,
) -> StateProbe:
    trained = trained_parameters(state.model)
    with announce(f"{state.name}: fp32"):
        reference = backward.run(state, recipe("fp32"))
        spectra = {name: Spectrum.of(g) for name, g in reference.gradients.items()}
        total = Spectrum.sum(spectra.values())
        _check(total, state.name)
    with announce(f"{state.name}: block formats"):
        blocks = paper.measured(reference.gradients)
    passes: list[PassRecord] = []
    parameters: list[Backward] = []
    modules: list[Backward] = []
    for chosen in recipes:
        form = float_format(chosen.products)
        for exponent in exponents:
            with announce(f"{state.name}: {form.name} at 2^{exponent}"):
                real = backward.run(state, chosen, exponent, backend)
                parameters += compare.of_parameters(real, reference, spectra, form, exponent)
                modules += compare.on_the_way(real, reference, form, exponent)
                passes.append(_record(real, chosen, exponent, state, backend))
    return StateProbe(
        name=state.name,
        loss=reference.loss,
        spectra=spectra,
        without_gradient=tuple(name for name in trained if name not in reference.gradients),
        predictions=tuple(paper.predictions(total, exponents)),
        measured=tuple(blocks),
        passes=tuple(passes),
        backward=tuple(parameters),
        on_the_way=tuple(modules),
    )


def _record(real: Pass, chosen: Recipe, exponent: int, state: State, backend: str) -> PassRecord:
    return PassRecord(
        recipe=chosen.name,
        format=chosen.products,
        exponent=exponent,
        backend=choose_backend(chosen, device_of(state.model), backend),
        loss=real.loss,
    )


def _check(total: Spectrum, name: str) -> None:
    broken = total.nans + total.positive_infinities + total.negative_infinities
    if broken:
        raise StudyError(
            f"{name}: {broken} gradient elements are infinite or NaN in fp32 already, so there is "
            "nothing to compare 16 bits with."
        )
    if not total.num_finite_nonzero:
        raise StudyError(f"{name}: every gradient element is zero in fp32 already.")
