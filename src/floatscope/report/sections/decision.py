"""The decision, drawn from the record of `study decide`."""

from __future__ import annotations

from floatscope.report.evidence import Evidence
from floatscope.report.section import Section
from floatscope.report.words import Say

MARKS = {True: "✓", False: "✗", None: "?"}


def section(evidence: Evidence) -> Section:
    """The section; pending without a decision."""
    title = Say("The decision", "为项目拍板")
    problem = evidence.damaged.get("decision", "")
    if evidence.decision is None:
        command = f"floatscope study decide {evidence.place}"
        return Section(name="decision", title=title, command=command, problem=problem)
    return Section(
        name="decision",
        title=title,
        problem=problem,
        spoils=True,
        values={"decision": evidence.decision, "marks": MARKS},
    )
