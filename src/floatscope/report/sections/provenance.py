"""Provenance: configuration, versions, machines, commits, and how to run all of it again."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from floatscope.lab.run.environment import Environment
from floatscope.lab.study.plan import WORLD
from floatscope.report.evidence import Evidence
from floatscope.report.section import Section
from floatscope.report.words import Say, grouped

NAMES = {
    "backend": Say("16-bit products", "16 位乘积"),
    "processor": Say("processor", "处理器"),
    "cores": Say("cores", "核数"),
    "system": Say("system", "系统"),
    "python": Say("Python", "Python"),
    "packages": Say("packages", "软件包"),
    "commit": Say("commit", "提交"),
}


def section(evidence: Evidence) -> Section:
    """The section."""
    plan = evidence.study.plan
    return Section(
        name="provenance",
        title=Say("Provenance", "出处与复现"),
        values={
            "plan": [*_configuration(evidence)],
            "environments": [*_environments(evidence)],
            "remarks": evidence.summary.remarks,
            "runs": [
                (run.label, run.manifest.run_id, run.manifest.ended, run.manifest.exit_reason)
                for run in evidence.runs
            ],
            "under_way": evidence.under_way,
            "steps": plan.train.steps,
            "commands": _commands(evidence),
            "data_sha256": evidence.study.data_sha256,
        },
    )


def _configuration(evidence: Evidence) -> Iterable[tuple[str, str]]:
    plan = evidence.study.plan
    yield "recipes", ", ".join(plan.recipes)
    for own in plan.own_recipes:
        yield (
            f"recipe {own.name}",
            "; ".join(f"{part}, {role}: {said}" for part, role, said in own.table()),
        )
    yield "seeds", ", ".join(map(str, plan.seeds))
    yield "ulp_reruns", str(plan.ulp_reruns)
    yield "text", plan.text
    yield "threads", str(plan.threads)
    for table in ("model", "train"):
        for key, value in asdict(getattr(plan, table)).items():
            yield f"{table}.{key}", f"{value:g}" if isinstance(value, float) else str(value)
    if evidence.runs:
        yield "parameters", grouped(evidence.runs[0].manifest.num_parameters)
        yield "tokens per step", grouped(evidence.runs[0].manifest.tokens_per_step)


def _environments(evidence: Evidence) -> Iterable[tuple[Say, list[tuple[str, int]]]]:
    """Each property with its values and in how many sessions they occurred."""
    all_of_them = [s.environment for run in evidence.runs for s in run.manifest.sessions]
    for key, words in NAMES.items():
        yield words, Counter(_shown(e, key) for e in all_of_them).most_common()


def _shown(environment: Environment, key: str) -> str:
    value: Any = getattr(environment, key)
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return "–" if value is None else str(value)


def _commands(evidence: Evidence) -> list[str]:
    plan, folder = evidence.study.plan, evidence.place
    text = "" if plan.text == WORLD else f" --text {shlex.quote(plan.text)}"
    # A preset and options do not say what a recipe of one's own was; the record does.
    of_preset = f"{shlex.quote(plan.name)}{text} --out {folder}"
    study = f"{folder}{text} --out again" if plan.own_recipes else of_preset
    return [
        f"floatscope study run {study}",
        f"floatscope probe {folder}{text}",
        f"floatscope report {folder} -o report.html",
    ]
