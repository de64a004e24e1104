"""A model and a study small enough to run many times in a test."""

from __future__ import annotations

import torch

from floatscope.lab.gpt_config import GPTConfig
from floatscope.lab.run.batches import Batch
from floatscope.lab.run.plan import RunPlan, TrainConfig
from floatscope.recipes import recipe

MODEL = GPTConfig(vocab_size=256, context=16, num_layers=2, width=32, num_heads=2, ff_width=48)
TRAIN = TrainConfig(
    steps=12, batch_size=4, peak_lr=3e-3, warmup_steps=2, eval_every=4, eval_windows=4
)

STUDY_TOML = """
recipes = ["fp32", "fp16-mixed"]
seeds = [1, 2]
ulp_reruns = 1
[model]
vocab_size = 256
context = 16
num_layers = 2
width = 32
num_heads = 2
ff_width = 48
[train]
steps = 12
batch_size = 4
peak_lr = 3e-3
warmup_steps = 2
eval_every = 4
eval_windows = 4
"""


def plan(name: str = "fp16-mixed", seed: int = 7) -> RunPlan:
    """A run that takes well under a second."""
    return RunPlan(recipe=recipe(name), seed=seed, model=MODEL, train=TRAIN)


def batch(config: GPTConfig = MODEL, size: int = 4, seed: int = 0) -> Batch:
    """Random ids."""
    shape = (size, config.context + 1)
    ids = torch.randint(0, config.vocab_size, shape, generator=torch.Generator().manual_seed(seed))
    return Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
