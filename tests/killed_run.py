"""`python -m tests.killed_run FOLDER TOKENS WHERE COUNT`: a run that kills itself with SIGKILL.

WHERE is "step", "checkpoint" or "record": in the middle of the COUNT-th backward pass, with half of
the COUNT-th checkpoint written, or with half of the COUNT-th record written. "nowhere" runs to the
end.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from floatscope.lab.run import checkpoint, journal
from floatscope.lab.run.train import Run
from floatscope.lab.text.corpus import load_tokens
from tests import tiny


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(where: str, count: int, run: Run) -> None:
    """Have this process die at the `count`-th time it is at `where`."""
    left = [count]

    def due() -> bool:
        left[0] -= 1
        return left[0] == 0

    if where == "step":
        weight = run.model.blocks[0].ff.up.weight
        weight.register_hook(lambda gradient: die() if due() else None)
    elif where == "checkpoint":
        save = checkpoint.save_file

        def half_saved(tensors: Any, path: Path, metadata: Any) -> None:
            save(tensors, path, metadata)
            if due():
                os.truncate(path, path.stat().st_size // 2)
                die()

        checkpoint.save_file = half_saved
    elif where == "record":
        to_line = journal.to_line

        def half_written(record: journal.Record) -> str:
            line = to_line(record)
            if due():
                with open(run.folder / "journal.jsonl", "ab") as file:
                    file.write(line[: len(line) // 2].encode())
                die()
            return line

        journal.to_line = half_written


def main() -> None:
    folder, cache, where, count = sys.argv[1:]
    tokens = load_tokens(Path(cache))
    assert tokens is not None
    run = Run(tiny.plan(), tokens, Path(folder), "emulated")
    arm(where, int(count), run)
    run.execute()


if __name__ == "__main__":
    main()
