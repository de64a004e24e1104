"""Spectra at half the speed of memory: `Spectrum.of` against a plain copy, and against casts.

    python benchmarks/spectrum.py [--rounds 5] [--size 24] [--no-capture]

Throughputs as multiples of that of `out.copy_(x)`, over 2^size values in the same run. Promised at
2^24 fp32 values of any kind: 0.5. Random bit patterns are shown too, with no promise: half of all
octaves occur there, and no tensor of a training looks like that. The same for bf16 and fp16, whose
copies move half the bytes.

Then what one spectrum saves: the numbers of elements that underflow, become subnormal and overflow
at 25 scales in four formats, by Torch's casts and by one measurement with all its predictions.
Promised: at least 500 times faster. Casts are timed at two of the scales and multiplied.

Last, what capturing spectra adds to a training step of the novel model.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import torch
from torch import Tensor

from floatscope.formats import FloatFormat
from floatscope.formats import format as format_called
from floatscope.lab.gpt_config import GPTConfig
from floatscope.lab.model import make_gpt
from floatscope.lab.run.batches import Batch
from floatscope.lab.run.environment import processor
from floatscope.lab.run.plan import TrainConfig
from floatscope.lab.run.train import batch_loss, make_optimizer
from floatscope.recipes.train_step import TrainStep
from floatscope.spectrum.capture.capture import capture
from floatscope.spectrum.spectrum import Spectrum
from measure import interleaved, ratio
from rounding import Variants, measured, report

EXPONENTS = range(-4, 21)
"""Of the scales: 25 of them."""
TIMED = (0, 16)
"""Those at which casts are timed."""
DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
PROMISED = 0.5
Judged = dict[tuple[str, int], tuple[int, int, int]]
"""By format and scale, how many underflow, become subnormal, overflow."""


def kinds(size: int) -> dict[str, tuple[Tensor, float | None]]:
    """Data by kind, each with the multiple of a copy that is promised."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(size, generator=generator)
    octaves = (
        torch.randn(size, generator=generator) * 3.7 - 20
    )  # of 2^24, the extremes are 40 apart
    uniform = torch.rand(size, generator=generator) * 200 - 100
    bits = torch.randint(-(1 << 31), 1 << 31, (size,), generator=generator).to(torch.int32)
    return {
        "normal": (normal, PROMISED),
        "log-normal gradients, 40 octaves": (octaves.exp2() * normal.sign(), PROMISED),
        "after a ReLU, half zeros": (normal.relu(), PROMISED),
        "constant": (torch.full((size,), 1e-3), PROMISED),
        "log-uniform, 200 octaves": (uniform.exp2(), PROMISED),
        "random bit patterns": (bits.view(torch.float32), None),
    }


def beside_a_copy(x: Tensor, promise: float | None) -> Variants:
    """One measurement, and simpler questions to the same tensor."""
    out = torch.empty_like(x)
    variants: Variants = {
        "out.copy_(x)": (lambda: out.copy_(x), None),
        "Spectrum.of(x)": (lambda: Spectrum.of(x), promise),
        "x.abs().amax()": (lambda: x.abs().amax(), None),
        "(x.half() == 0).sum()": (lambda: (x.half() == 0).sum(), None),
    }
    if x.dtype is torch.float32:
        variants["torch.histc, 100 bins"] = (lambda: torch.histc(x, 100, -1, 1), None)
    return variants


def by_casts(x: Tensor, exponents: Iterable[int]) -> Judged:
    """Counts by Torch's casts; those to e4m3fn saturate, so there the threshold is asked."""
    held = x.numel() - int(torch.count_nonzero(~x.isfinite()))
    zeros = x.numel() - int(torch.count_nonzero(x))
    found: Judged = {}
    for exponent in exponents:
        scaled = x * 2.0**exponent
        for name, dtype in DTYPES.items():
            form = format_called(name)
            assert isinstance(form, FloatFormat)
            result = scaled.to(dtype).float().abs_()
            flushed = int(torch.count_nonzero(result == 0))
            small = int(torch.count_nonzero(result < float(form.smallest_normal)))
            if name == "e4m3fn":
                kept = int(torch.count_nonzero(scaled.abs() <= float(form.overflow_threshold)))
            else:
                kept = int(torch.count_nonzero(result <= float(form.max)))
            found[name, exponent] = flushed - zeros, small - flushed, held - kept
    return found


def by_spectrum(x: Tensor, exponents: Iterable[int]) -> Judged:
    """The same counts from one measurement."""
    spectrum, exponents = Spectrum.of(x), [*exponents]
    found: Judged = {}
    for name in DTYPES:
        sweep = spectrum.sweep(name, exponents)
        columns = (sweep.underflow.tolist(), sweep.subnormal.tolist(), sweep.overflow.tolist())
        for exponent, *counts in zip(exponents, *columns, strict=True):
            found[name, exponent] = (counts[0], counts[1], counts[2])
    return found


def half_widths(x: Tensor, rounds: int) -> None:
    """bf16 and fp16: the same values, half the bytes."""
    for dtype in (torch.bfloat16, torch.float16):
        narrow = x.to(dtype)
        wide, out = torch.empty_like(x), torch.empty_like(narrow)
        print(f"\n{dtype}, normal: as multiples of its own copy, and of that of fp32")
        variants = beside_a_copy(narrow, None)
        variants["out.copy_(x), fp32"] = (lambda wide=wide: wide.copy_(x), None)
        variants["out.copy_(x)"] = (lambda out=out, narrow=narrow: out.copy_(narrow), None)
        timings = measured(variants, rounds)
        for name, timing in timings.items():
            own = ratio(timings["out.copy_(x)"], timing)
            other = ratio(timings["out.copy_(x), fp32"], timing)
            print(f"  {name:28}{1e3 * timing.median:9.2f} ms{own:8.2f}{other:8.2f}")


def against_casts(x: Tensor, rounds: int) -> None:
    """All answers for 25 scales and four formats."""
    few = x[: 1 << 18]
    assert by_casts(few, EXPONENTS) == by_spectrum(few, EXPONENTS)
    num = len(EXPONENTS)
    print(f"\n{num} scales x {len(DTYPES)} formats (promised: 500 times faster)")
    variants: Variants = {
        "casts": (lambda: by_casts(x, TIMED), None),
        "Spectrum.of(x) and all": (lambda: by_spectrum(x, EXPONENTS), None),
    }
    timings = measured(variants, rounds)
    casts, spectrum = timings.values()
    more = num / len(TIMED)
    print(f"  casts, {len(TIMED)} scales timed, times {more:.1f}:{more * casts.median:9.2f} s")
    print(f"  Spectrum.of(x), all predictions:{1e3 * spectrum.median:9.2f} ms")
    print(f"  {more * ratio(casts, spectrum):.0f} times faster")


def capture_overhead(rounds: int) -> None:
    """The share of the novel model's training step that capturing takes.

    Promised: all weight gradients at each step under 1 %, all roles at each tenth step under 5 %.
    """
    rounds = max(rounds, 15)  # steps differ by more than the promise
    plain, _ = trainer()
    again, _ = trainer()
    watched, its_optimizer = trainer()
    everything, all_optimizer = trainer()
    with (
        capture(watched.model, optimizer=its_optimizer, roles="weight_gradient"),
        capture(everything.model, optimizer=all_optimizer),
    ):
        batch = novel_batch()
        variants = {
            name: lambda step=step: step(lambda model: batch_loss(model, batch))
            for name, step in (
                ("plain", plain), ("weight gradients", watched), ("all roles", everything),
                ("plain again", again),
            )
        }  # fmt: skip
        timings, dropped = interleaved(variants, rounds=rounds)
    step = timings["plain"]
    print(f"\ncapture; a step takes {step.median:.2f} s; {dropped} of {rounds} rounds dropped")
    gradients = ratio(timings["weight gradients"], step) - 1
    sampled = ratio(timings["all roles"], step) - 1
    control = ratio(timings["plain again"], step) - 1
    print(f"  nothing, as a control             {100 * control:6.2f} %")
    print(f"  weight gradients, each step       {100 * gradients:6.2f} %   promised   1 %")
    print(f"  all roles, each tenth step        {10 * sampled:6.2f} %   promised   5 %")
    print(f"  all roles, in a step that is measured {100 * sampled:.1f} %")


def trainer() -> tuple[TrainStep, torch.optim.Optimizer]:
    """A training step of the novel model in fp32."""
    model = make_gpt(GPTConfig(), seed=1337)
    optimizer = make_optimizer(model, TrainConfig())
    return TrainStep(model, optimizer, "fp32", clip_norm=1.0), optimizer


def novel_batch() -> Batch:
    config, generator = GPTConfig(), torch.Generator().manual_seed(0)
    ids = torch.randint(0, config.vocab_size, (32, config.context + 1), generator=generator)
    return Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=24, help="log2 of the number of values")
    parser.add_argument("--no-capture", action="store_true", help="leave out the training steps")
    options = parser.parse_args()
    print(f"{processor()}; {torch.get_num_threads()} threads; 2^{options.size} values")
    data = kinds(1 << options.size)
    for name, (x, promise) in data.items():
        report(f"fp32, {name}", beside_a_copy(x, promise), options.rounds, x.numel())
    normal = data["normal"][0]
    half_widths(normal, options.rounds)
    against_casts(normal, options.rounds)
    if not options.no_capture:
        capture_overhead(options.rounds)


if __name__ == "__main__":
    main()
