"""A decision on disk: `decision.json`, and its text in both languages."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from floatscope.files import write_text_atomically
from floatscope.lab.decision.markdown import markdown
from floatscope.lab.decision.records import RECORD, SCHEMA_VERSION, Decision
from floatscope.lab.run.json_files import json_values, read_json

TEXTS = {"en": "decision.md", "zh": "decision.zh.md"}


def keep(folder: Path, decision: Decision) -> None:
    """Write the record and its texts into `folder`, the record last.

    Raises:
        DiskError: the disk is full or the folder cannot be written.
    """
    write_text_atomically(folder / TEXTS["en"], markdown(decision, "en"))
    write_text_atomically(folder / TEXTS["zh"], markdown(decision, "zh"))
    text = json.dumps(json_values(asdict(decision)), indent=1, ensure_ascii=False, allow_nan=False)
    write_text_atomically(folder / RECORD, text + "\n")


def load(folder: Path) -> Decision:
    """The decision in `folder`.

    Raises:
        FileNotFoundError: there is none.
        StudyError: it is damaged, or of a newer schema.
    """
    way_out = "Make it anew with floatscope study decide."
    return read_json(folder / RECORD, Decision, SCHEMA_VERSION, way_out)
