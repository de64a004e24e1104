"""`python -m floatscope.lab.run.worker`: one run in a process of its own.

The study hands over a request on standard input and keeps the pipe open; when it closes, because
the study ended or was killed, the worker ends too, at any point: its run resumes from the last
checkpoint. Deliberate errors go to standard error as one line and give exit status 1.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from floatscope.errors import FloatscopeError, StudyError


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a worker needs to know."""

    plan: dict[str, Any]
    """`RunPlan.to_dict()`."""
    tokens: str
    """Cache file of the encoded text."""
    folder: str
    backend: str
    study_sha256: str | None = None

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def command() -> list[str]:
    """The command line that starts a worker."""
    return [sys.executable, "-m", "floatscope.lab.run.worker"]


def worker_environment(threads: int) -> dict[str, str]:
    """Environment variables for a worker that computes with `threads` threads.

    The malloc settings let glibc keep the pages that a step frees. Without them every step returns
    some 800 MB to the system and takes it back, page fault by page fault: a fifth of its time.
    Results do not change.
    """
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
        "MALLOC_TOP_PAD_": str(256 << 20),
    }


def _end_with_the_study() -> None:
    # Below Python's buffered reader, whose lock would be held at the interpreter's shutdown.
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(2)


def main() -> int:
    """Serve one request; returns the exit status."""
    request = Request(**json.loads(sys.stdin.buffer.readline()))
    threading.Thread(target=_end_with_the_study, daemon=True).start()
    try:
        from floatscope.lab.run.plan import RunPlan
        from floatscope.lab.run.train import Run
        from floatscope.lab.text.corpus import load_tokens

        tokens = load_tokens(Path(request.tokens))
        if tokens is None:
            raise StudyError(
                f"the token cache {request.tokens} vanished or was damaged; run again."
            )
        plan = RunPlan.from_dict(request.plan)
        run = Run(plan, tokens, Path(request.folder), request.backend, request.study_sha256)
        run.execute()
    except FloatscopeError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        details = Path(request.folder) / "traceback.txt"
        with suppress(OSError):
            details.write_text(traceback.format_exc())
        what = str(error).splitlines()[0] if str(error) else ""
        print(f"unexpected {type(error).__name__}: {what} (details in {details})", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
