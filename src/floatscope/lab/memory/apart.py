"""A measurement in a process of its own: `python -m floatscope.lab.memory.apart`.

The request comes as one JSON line on standard input; the answer is a file, since a user's model may
print. The pipe stays open: when it closes, because the caller ended, the worker ends too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from floatscope.errors import FloatscopeError, LedgerError


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the worker needs to know."""

    spec: dict[str, Any]
    """Fields of a `Spec`."""
    recipe: str
    backend: str
    answer: str
    """File that the worker writes."""


def measure_apart(spec: Any, recipe: str, backend: str = "auto") -> dict[str, Any]:
    """Measure a recipe in a fresh process.

    Args:
        spec: a `Spec`.
        recipe: name of a recipe.
        backend: "auto", "native" or "emulated".

    Returns:
        "measurement" (`Measurement.to_dict`), "peak_rss_bytes" of the process, and "device", the
        allocator's figures where an accelerator was used.

    Raises:
        LedgerError: the measurement failed; the message says in which stage and why.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        request = Request(spec=asdict(spec), recipe=recipe, backend=backend, answer=str(answer))
        with subprocess.Popen(
            [sys.executable, "-m", "floatscope.lab.memory.apart"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                assert process.stdin is not None
                assert process.stderr is not None
                process.stdin.write(json.dumps(asdict(request)).encode() + b"\n")
                process.stdin.flush()
                said = process.stderr.read().decode(errors="replace").strip()
                status = process.wait()
            finally:
                process.kill()
        if status == 0:
            return json.loads(answer.read_text())
    raise LedgerError(_reason(recipe, status, said))


def _reason(recipe: str, status: int, said: str) -> str:
    if status == -9:
        return (
            f"{recipe}: the system killed the measurement, as it does when memory runs out. "
            "`floatscope memory trace` predicts without allocating."
        )
    last = said.splitlines()[-1] if said else f"exit status {status}"
    return f"{recipe}: {last}"


def _answer(request: Request) -> dict[str, Any]:
    import torch

    from floatscope.lab.memory.target import Spec, target_of
    from floatscope.lab.run.environment import peak_rss_bytes
    from floatscope.memory.device import DeviceMeter
    from floatscope.memory.meter import measure

    spec = Spec(**request.spec)
    workload = target_of(spec).workload(request.recipe, request.backend)
    if spec.device == "cpu":
        measured, figures = measure(workload), []
    else:
        device = DeviceMeter(torch.device(spec.device))
        device.warm_up()
        measured, figures = measure(workload, around=device.around), device.figures
    return {
        "measurement": measured.to_dict(),
        "peak_rss_bytes": peak_rss_bytes(),
        "device": [asdict(figure) for figure in figures],
    }


def _end_with_the_caller() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(2)


def main() -> int:
    """Serve one request; returns the exit status."""
    request = Request(**json.loads(sys.stdin.buffer.readline()))
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    try:
        Path(request.answer).write_text(json.dumps(_answer(request)))
    except FloatscopeError as error:
        print(_one_line(error), file=sys.stderr)
        return 1
    except Exception as error:
        print(f"the step raised {type(error).__name__}: {_one_line(error)}", file=sys.stderr)
        return 1
    return 0


def _one_line(error: BaseException) -> str:
    """An error and its notes, on one line."""
    notes = getattr(error, "__notes__", [])
    return " ".join(" ".join([str(error), *notes]).split())


if __name__ == "__main__":
    sys.exit(main())
