"""Every recipe of the catalogue trains, and a run of it goes on bit for bit after a kill."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from floatscope.lab.run import records
from floatscope.lab.run.train import Run
from floatscope.lab.text.corpus import encode
from floatscope.lab.text.world import world_text
from floatscope.recipes import CATALOGUE
from tests import tiny


class StopAt(Exception):
    pass


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_recipe_trains_and_resumes_bit_for_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, _ = encode(world_text(), tiny.MODEL.vocab_size)
    plan = tiny.plan(name)
    plan = dataclasses.replace(plan, train=dataclasses.replace(plan.train, steps=6, eval_every=3))
    whole = Run(plan, tokens, tmp_path / "whole")
    whole.execute()
    weights = {k: v.clone() for k, v in whole.model.state_dict().items()}
    finished = records.load(tmp_path / "whole")
    losses = finished.table("metrics")["loss"]
    stores_less = CATALOGUE[name].stored != CATALOGUE["fp32"].stored
    assert (tmp_path / "whole" / "storage.parquet").exists() == stores_less
    stored = finished.table("storage") if stores_less else {}
    if stores_less:
        swallowed = name in ("bf16-pure", "fp16-pure")
        skipped = finished.table("metrics")["skipped"]
        assert stored["step"] == [step for step, skip in enumerate(skipped) if not skip]
        assert set(stored["updates"]) == {finished.manifest.num_parameters} or swallowed
        assert all(
            0 <= lost <= of for lost, of in zip(stored["lost"], stored["updates"], strict=True)
        )
        assert all(quality == pytest.approx(1, abs=0.2 if swallowed else 0.05)
                   for quality in stored["quality"])  # fmt: skip
    if name != "fp16-pure":  # whose second moment underflows, so that its steps are far too long
        assert losses[-1] < losses[0]
    assert all(v.isfinite().all() for v in weights.values())

    stopped = Run(plan, tokens, tmp_path / "stopped")
    one_step = stopped._one_step

    def stop(step: int) -> str:
        if step == 4:
            raise StopAt
        return one_step(step)

    monkeypatch.setattr(stopped, "_one_step", stop)
    with pytest.raises(StopAt):
        stopped.execute()
    resumed = Run(plan, tokens, tmp_path / "stopped")
    resumed.execute()
    for key, value in resumed.model.state_dict().items():
        assert torch.equal(value, weights[key]), key
    again = records.load(tmp_path / "stopped")
    assert again.table("metrics")["loss"] == losses
    assert (again.table("storage") if stores_less else {}) == stored
