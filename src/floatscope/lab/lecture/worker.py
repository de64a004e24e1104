"""`python -m floatscope.lab.lecture.worker`: trainings of demonstration 5, one after the other.

Requests come as JSON lines on standard input, answers go as JSON lines to standard output: how many
steps are done, and at the end what was found. When the input closes, because the caller is done or
was killed, the process ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict
from queue import Queue
from typing import Any

STEPS_A_LINE = 10


def main() -> None:
    """Serve requests until the input closes."""
    requests: Queue[dict[str, Any]] = Queue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    import torch

    from floatscope.lab.base_model import CharTokenizer, build_world

    world, tok = build_world(), CharTokenizer()
    data, val = (torch.tensor(tok.encode(t)) for t in (world.train_text(), world.val_text()))
    while True:
        request = requests.get()
        try:
            _answer(request["index"], **_trained(data, val, **request))
        except Exception as error:
            _answer(request["index"], error=f"{type(error).__name__}: {error}")


def _trained(
    data: Any, val: Any, *, index: int, arm: str, beta2: float, seed: int, steps: int
) -> dict[str, Any]:
    from floatscope.lab.base_model import Training
    from floatscope.lab.lecture.demo5_master import ARMS, MORE, train_arm

    chosen = next(a for a in (*ARMS, *MORE) if (a.name, a.beta2) == (arm, beta2))

    def done(number: int) -> None:
        if number % STEPS_A_LINE == 0:
            _answer(index, steps=number)

    found = train_arm(data, val, chosen, Training(steps=steps, seed=seed), done)
    return {"steps": steps, "trained": asdict(found)}


def _answer(index: int, **what: Any) -> None:
    print(json.dumps({"index": index, **what}), flush=True)


def _listen(requests: Queue[dict[str, Any]]) -> None:
    for line in sys.stdin.buffer:
        requests.put(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    main()
