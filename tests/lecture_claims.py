"""What the lecture claims: asserted of a small run, of a full one, and of the kept records."""

from __future__ import annotations

from itertools import takewhile
from statistics import mean

from floatscope.lab.lecture.records import Gradients, MasterWeights, Scaling

LEAST_SKIPS = 3


def check_gradients(record: Gradients) -> None:
    """Scaling lowers the median error, and from 2^8 on it is level; 2^24 overflows."""
    for batch in record.batches:
        rows = {row.exponent: row for row in batch.scales}
        assert [*rows] == [0, 4, 8, 12, 16, 20, 24]
        assert rows[0].median_error >= 1.1 * rows[8].median_error
        for row in batch.scales:
            if row.exponent >= 8 and row.is_finite:
                assert abs(row.median_error / rows[8].median_error - 1) <= 0.03
        assert rows[8].is_finite
        assert rows[24].infinite.count + rows[24].nan.count > 0
        for row in batch.scales:
            assert row.flushed.of == row.predicted_flushed.of <= row.nan.of == 110_400


def check_scaling(record: Scaling) -> None:
    """Skips in a row at first, every skip halves, every doubling follows ten clean steps."""
    run, interval = record.ordinary, record.growth_interval
    assert (len(run.steps), interval) == (40, 10)
    assert len([*takewhile(lambda step: step.skipped, run.steps)]) >= LEAST_SKIPS
    after = [*(step.exponent for step in run.steps[1:]), run.final_exponent]
    clean = 0
    for step, exponent in zip(run.steps, after, strict=True):
        clean = 0 if step.skipped else clean + 1
        if step.skipped:
            assert exponent == step.exponent - 1
        elif step.grew:
            assert (clean, exponent) == (interval, step.exponent + 1)
            clean = 0
        else:
            assert exponent == step.exponent
            assert clean < interval
    for each in (run, record.overflowing):
        rise = each.final_exponent - each.initial_exponent
        assert each.num_grown - each.num_skipped == rise
        assert each.num_skipped <= (len(each.steps) - interval * rise) / (interval + 1)
    falling = record.overflowing
    assert falling.num_skipped == len(falling.steps)
    assert falling.collapsed
    assert falling.final_exponent == record.floor_exponent == -24


def check_master_weights(record: MasterWeights) -> None:
    """bf16 without a master is worse in every pair; with one, the mean is less than half of it."""
    bare, master = record.paired("bf16"), record.paired("bf16+master")
    assert bare.keys() == master.keys() != set()
    assert all(difference > 0 for difference in bare.values())
    assert mean(master.values()) < mean(bare.values()) / 2
