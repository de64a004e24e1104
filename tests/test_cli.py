"""The command line as a whole: help, wrong usage, interruption, exit statuses."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest


def run(*args: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """The command line, in a process that runs `code` first."""
    program = f"import floatscope.cli.main as cli\n{code}\ncli.main()"
    command = [sys.executable, "-c", program, *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["format"], "No such command 'format'. Did you mean 'formats'?"),
        (["study", "rn"], "No such command 'rn'. Did you mean 'run'?"),
        (["study", "run", "--job", "2"], "No such option '--job'. (Did you mean one of: '--jobs'"),
        (["study", "run", "--jobs", "0"], "Invalid value for '--jobs': 0 is not in the range x>=1"),
        (["study", "show"], "Missing argument 'FOLDER'."),
        (["bits"], "Missing argument 'VALUE'."),
    ],
)
def test_wrong_usage(args: list[str], message: str) -> None:
    done = run(*args)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: floatscope ")
    assert message in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("args", [[], ["study"], ["text"]])
def test_a_group_alone_shows_its_help(args: list[str]) -> None:
    alone = run(*args)
    assert alone.returncode == 2
    assert alone.stderr == run(*args, "-h").stdout


def test_an_interruption_is_no_traceback() -> None:
    done = run("wait", code="@cli.app.command()\ndef wait(): raise KeyboardInterrupt")
    assert done.returncode == 130
    assert done.stderr.strip() == ""


def test_a_full_standard_output_is_one_error_however_short_the_output() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    command = [sys.executable, "-m", "floatscope.cli.main", "formats", "bf16"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: the output could not be written: No space left on device.\n"


def test_a_closed_standard_output_is_one_error() -> None:
    command = f"{shlex.quote(sys.executable)} -m floatscope.cli.main formats int8 --values >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: the output could not be written: standard output is closed.\n"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_characters_that_the_output_does_not_have_are_escaped(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    assert "\\u2264 2^-25" in run("formats", "fp16").stdout
    assert "\\u2248" in run("bits", "0.3", "-f", "fp16").stdout
    (nvfp4,) = json.loads(run("formats", "nvfp4", "--json").stdout)
    assert nvfp4["scale"] == "e4m3fn × fp32"
    done = run("bits", "≈1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: '")
