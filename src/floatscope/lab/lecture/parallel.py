"""Trainings in processes of their own, one a core, each single-threaded.

Beside other work two threads can be thirty times slower than one, because each waits for the other
at every operation; two processes do not wait for each other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from queue import Queue
from typing import Any

from floatscope.errors import LectureError
from floatscope.lab.lecture.records import Trained
from floatscope.lab.run.worker import worker_environment
from floatscope.lab.watch import Watch, unwatched

COMMAND = (sys.executable, "-m", "floatscope.lab.lecture.worker")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One training."""

    arm: str
    beta2: float
    seed: int
    steps: int


def trained_apart(requests: Sequence[Request], watch: Watch = unwatched) -> tuple[Trained, ...]:
    """The trainings, in the order of the requests.

    Raises:
        LectureError: a training failed.
    """
    from pydantic import TypeAdapter

    found: dict[int, dict[str, Any]] = {}
    steps_done = dict.fromkeys(range(len(requests)), 0)
    waiting = deque(enumerate(requests))
    with (
        watch(f"{len(requests)} trainings", sum(r.steps for r in requests)) as done,
        _workers(min(num_cores(), len(requests))) as (workers, answers),
    ):
        for worker in workers:
            worker.give(waiting)
        while len(found) < len(requests):
            worker, answer = answers.get()
            if answer is None or "error" in answer:
                raise LectureError(f"a training stopped: {worker.reason(answer)}")
            index = answer["index"]
            steps_done[index] = answer["steps"]
            done(sum(steps_done.values()))
            if "trained" in answer:
                found[index] = answer["trained"]
                worker.give(waiting)
    return tuple(
        TypeAdapter(Trained).validate_python(found[index]) for index in range(len(requests))
    )


def num_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class _Worker:
    """A process that trains what it is given, one after the other."""

    def __init__(self, answers: Queue[tuple[_Worker, dict[str, Any] | None]]) -> None:
        self.process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=worker_environment(threads=1),
            start_new_session=True,  # Ctrl-C reaches the caller alone, which ends its workers
        )
        self.listener = threading.Thread(target=self._listen, args=(answers,), daemon=True)
        self.listener.start()

    def _listen(self, answers: Queue[tuple[_Worker, dict[str, Any] | None]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            answers.put((self, json.loads(line)))
        answers.put((self, None))

    def give(self, waiting: deque[tuple[int, Request]]) -> None:
        """Hand over the next request, if there is one."""
        if waiting:
            index, request = waiting.popleft()
            assert self.process.stdin is not None
            line = json.dumps({"index": index, **asdict(request)})
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def close(self) -> None:
        """Close the pipes of a process that has ended."""
        self.listener.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with suppress(OSError):
                assert pipe is not None
                pipe.close()

    def reason(self, answer: dict[str, Any] | None) -> str:
        """Why it stopped."""
        if answer is not None:
            return answer["error"]
        assert self.process.stderr is not None
        said = self.process.stderr.read().decode(errors="replace").strip()
        return said.splitlines()[-1] if said else f"exit status {self.process.wait()}"


@contextmanager
def _workers(
    number: int,
) -> Iterator[tuple[list[_Worker], Queue[tuple[_Worker, dict[str, Any] | None]]]]:
    """Workers that are ended when the block is left, however it is left."""
    answers: Queue[tuple[_Worker, dict[str, Any] | None]] = Queue()
    workers: list[_Worker] = []
    try:
        workers += [_Worker(answers) for _ in range(number)]
        yield workers, answers
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.wait()
            worker.close()
