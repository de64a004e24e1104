"""Is the difference real? Statistics for a handful of training runs.

Everything takes losses, one a run, and rests on Student's t: percentile and BCa bootstrap intervals
of three to ten runs cover far less than they say, and exact sign tests cannot reach 5 % below six
pairs. Diverged runs are refused wherever there is a mean, and counted on their own.

    comparison = paired(fp32_losses, bf16_losses)   # or welch(), pooled(), dunnett()
    verdict(comparison, margin=0.0045).sentence
"""

from floatscope.lab.statistics.basics import ALPHA, Interval
from floatscope.lab.statistics.compare import (
    POOLABLE_BELOW,
    Pairing,
    paired,
    pairing,
    pooled,
    spread_ratio,
    welch,
)
from floatscope.lab.statistics.comparison import PAIRED, TWO_ARMS, Comparison, Design
from floatscope.lab.statistics.curves import CurveBand, curve_band
from floatscope.lab.statistics.divergence import divergence_bound, divergence_rate
from floatscope.lab.statistics.floor import (
    NoiseFloor,
    Screening,
    noise_floor,
    prediction_interval,
    screening,
)
from floatscope.lab.statistics.planning import (
    power,
    runs_needed,
    smallest_difference,
    smallest_margin,
)
from floatscope.lab.statistics.several import dunnett, fixed_sequence, holm
from floatscope.lab.statistics.verdict import RunsNeeded, Verdict, decide, verdict

__all__ = [
    "ALPHA",
    "PAIRED",
    "POOLABLE_BELOW",
    "TWO_ARMS",
    "Comparison",
    "CurveBand",
    "Design",
    "Interval",
    "NoiseFloor",
    "Pairing",
    "RunsNeeded",
    "Screening",
    "Verdict",
    "curve_band",
    "decide",
    "divergence_bound",
    "divergence_rate",
    "dunnett",
    "fixed_sequence",
    "holm",
    "noise_floor",
    "paired",
    "pairing",
    "pooled",
    "power",
    "prediction_interval",
    "runs_needed",
    "screening",
    "smallest_difference",
    "smallest_margin",
    "spread_ratio",
    "verdict",
    "welch",
]
