"""Every error that floatscope raises on purpose, one family under one base.

A message names the file, option or value at fault and the way out; the command line prints it
without a traceback and exits with status 1.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FloatscopeError(Exception):
    """Base of all deliberate errors."""


class FormatError(FloatscopeError):
    """A number format is unknown or impossible, or cannot express what is asked of it."""


class SpectrumError(FloatscopeError):
    """A stored spectrum is damaged, or spectra cannot be collected."""


class RecipeError(FloatscopeError):
    """A recipe is unknown, or cannot be carried out on this model, device or operation."""


class TextError(FloatscopeError):
    """A training text is missing, unreadable, too short, or not what it should be."""


class StudyError(FloatscopeError):
    """A study plan, its folder or one of its records cannot be used."""


class LedgerError(FloatscopeError):
    """A memory ledger cannot be made: impossible sizes, or code that cannot be traced."""


class LectureError(FloatscopeError):
    """A training of the lecture failed."""


def unknown(what: str, given: str, choices: Iterable[str]) -> str:
    """A message for a name that is not among `choices`, with the nearest offered."""
    choices = list(choices)
    near = difflib.get_close_matches(given, choices, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {given!r}.{hint} Choose from: {', '.join(choices)}."
