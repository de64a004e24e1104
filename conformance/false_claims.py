"""How often verdicts are false: one recipe against itself, on real runs and on normal numbers.

    python -m conformance.false_claims condense STUDY results/aa/endpoints.json
    python -m conformance.false_claims rates results/aa/endpoints.json [--draws 10000]

A study of one recipe over many seeds is drawn from, without replacement, as a baseline and a
candidate of n runs each. Nothing differs, so "worse" and "different" are false; with the margin
added to the candidate, or taken from it, "equivalent" is. The arithmetic of the verdicts is written
a second time here, for all draws at once; a test holds it to the library's.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Losses = NDArray[np.float64]
METHODS = ("paired", "pooled", "welch")
SIZES = (3, 5, 8, 10)
MARGINS = (0.5, 1.0, 3.0)
"""In standard deviations of a run."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Shares of draws with a false claim."""

    method: str
    n: int
    margin: float
    worse: float
    """Called worse, where nothing differs."""
    different: float
    """Called worse or different but within the margin, where nothing differs."""
    equivalent_above: float
    """Called equivalent or different but within the margin, where the candidate is worse by it."""
    equivalent_below: float
    """The same where the candidate is better by it."""
    not_worse: float
    """Called anything but worse or inconclusive, where the candidate is worse by the margin."""


def drawn(losses: Losses, n: int, draws: int, rng: np.random.Generator) -> tuple[Losses, Losses]:
    """Baselines and candidates, each (draws, n), no run twice within a draw."""
    order = rng.permuted(np.tile(np.arange(len(losses)), (draws, 1)), axis=1)
    return losses[order[:, :n]], losses[order[:, n : 2 * n]]


def words(method: str, a: Losses, b: Losses, margin: float) -> NDArray[np.str_]:
    """The verdict of each draw: candidates b against baselines a."""
    from scipy.special import stdtrit

    difference, error, df = _compared(method, a, b)
    half_95, half_90 = stdtrit(df, 0.975) * error, stdtrit(df, 0.95) * error
    inside = np.abs(difference) + half_90 < margin
    above, below = difference - half_95 > 0, difference + half_95 < 0
    return np.select(
        [inside & (above | below), inside, above, difference + half_90 < margin],
        ["different but within the margin", "equivalent", "worse", "not worse"],
        "inconclusive",
    )


def _compared(method: str, a: Losses, b: Losses) -> tuple[Losses, Losses, Losses]:
    """Difference, standard error and degrees of freedom of each draw."""
    n = a.shape[1]
    difference = b.mean(1) - a.mean(1)
    if method == "paired":
        variance, df = (b - a).var(1, ddof=1) / n, np.full(len(a), n - 1.0)
        return difference, np.sqrt(variance), df
    of_a, of_b = a.var(1, ddof=1) / n, b.var(1, ddof=1) / n
    df = np.full(len(a), 2.0 * (n - 1))
    if method == "welch":
        df = (of_a + of_b) ** 2 / ((of_a**2 + of_b**2) / (n - 1))
    return difference, np.sqrt(of_a + of_b), df


def rates(method: str, a: Losses, b: Losses, margin: float) -> Rates:
    """False claims of a method on draws that differ in nothing."""
    within = ("equivalent", "different but within the margin")
    same = words(method, a, b, margin)
    above, below = words(method, a, b + margin, margin), words(method, a, b - margin, margin)
    worse = np.mean(same == "worse")
    return Rates(
        method=method,
        n=a.shape[1],
        margin=margin,
        worse=float(worse),
        different=float(worse + np.mean(same == within[1])),
        equivalent_above=float(np.isin(above, within).mean()),
        equivalent_below=float(np.isin(below, within).mean()),
        not_worse=float(np.isin(above, ("not worse", *within)).mean()),
    )


def condensed(folder: Path) -> dict[str, Any]:
    """A study of one recipe in its evaluations alone."""
    from floatscope.lab.study.folder import open_study

    study = open_study(folder)
    runs, environments = [], set()
    for plan, run in study.finished():
        evaluations = run.table("evaluations")
        environments |= {
            json.dumps(asdict(s.environment), sort_keys=True) for s in run.manifest.sessions
        }
        runs.append(
            {
                "seed": plan.seed,
                "run_id": run.manifest.run_id,
                "exit_reason": run.manifest.exit_reason,
                "losses": evaluations["loss"],
            }
        )
    return {
        "study": study.plan.name,
        "recipe": study.plan.recipes[0],
        "data_sha256": study.data_sha256,
        "environments": [json.loads(text) for text in sorted(environments)],
        "evaluated_after": evaluations["step"],
        "runs": runs,
    }


def endpoints(path: Path) -> Losses:
    """The last losses of the runs in a condensed study, all of which must have finished."""
    runs = json.loads(path.read_text())["runs"]
    assert all(run["exit_reason"] == "finished" for run in runs)
    return np.array([run["losses"][-1] for run in runs])


def _condense(study: Path, out: Path) -> None:
    content = condensed(study)
    runs = ",\n".join("  " + json.dumps(run) for run in content.pop("runs"))
    head = json.dumps(content, indent=1).removesuffix("\n}")
    out.write_text(f'{head},\n "runs": [\n{runs}\n ]\n}}\n')


def main() -> None:
    """Condense a study, or print a table of rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    condense = verbs.add_parser("condense")
    condense.add_argument("study", type=Path)
    condense.add_argument("out", type=Path)
    table = verbs.add_parser("rates")
    table.add_argument("endpoints", type=Path)
    table.add_argument("--draws", type=int, default=10_000)
    given = parser.parse_args()
    if given.verb == "condense":
        _condense(given.study, given.out)
        return
    losses = endpoints(given.endpoints)
    s = float(losses.std(ddof=1))
    print(f"{len(losses)} runs, standard deviation {s:.5f}, {given.draws} draws a row")
    print("method   n  margin/s  worse  different  equivalent at ±margin  not worse")
    for method in METHODS:
        for n in SIZES:
            rng = np.random.default_rng((n, METHODS.index(method)))
            a, b = drawn(losses, n, given.draws, rng)
            for margin in MARGINS:
                r = rates(method, a, b, margin * s)
                print(
                    f"{method:7} {n:2}  {margin:8g}  {r.worse:5.2%}  {r.different:9.2%}  "
                    f"{r.equivalent_above:12.2%} {r.equivalent_below:7.2%}  {r.not_worse:9.2%}"
                )


if __name__ == "__main__":
    main()
