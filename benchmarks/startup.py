"""How long the command line takes to start: `floatscope --help` and `floatscope formats`.

    python benchmarks/startup.py [--rounds 15]

Prints median milliseconds a start, beside those of `python -c pass`, and the processor time in
them, which other load on the machine inflates less. Promised for both verbs: under 150 ms on a
quiet machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from floatscope.lab.run.environment import processor
from measure import interleaved

FLOATSCOPE = str(Path(sys.executable).with_name("floatscope"))
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "floatscope --help": [FLOATSCOPE, "--help"],
    "floatscope formats": [FLOATSCOPE, "formats"],
}
STARTS = 5  # a round, so that a round is long beside the clock of the machine's load


def starts_of(command: list[str], processor_seconds: list[float]) -> Callable[[], None]:
    """Start a command a few times, and note the processor seconds of a start."""

    def starts() -> None:
        before = sum(os.times()[2:4])
        for _ in range(STARTS):
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        processor_seconds.append((sum(os.times()[2:4]) - before) / STARTS)

    return starts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    used: dict[str, list[float]] = {name: [] for name in COMMANDS}
    timings, dropped = interleaved(
        {name: starts_of(command, used[name]) for name, command in COMMANDS.items()}, rounds=rounds
    )
    print(f"{processor()}, Python {sys.version.split()[0]}")
    print(
        f"{rounds} rounds of {STARTS} starts, {dropped} dropped for foreign load (negative: every"
    )
    print("round was disturbed, all were kept)\n")
    print(f"{'':22}{'ms a start':>12}{'processor ms':>14}")
    for name, timing in timings.items():
        milliseconds = 1e3 * timing.median / STARTS
        print(f"{name:22}{milliseconds:12.0f}{1e3 * statistics.median(used[name]):14.0f}")


if __name__ == "__main__":
    main()
