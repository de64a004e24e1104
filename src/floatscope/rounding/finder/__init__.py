"""The disagreement finder: where two quantizers differ, and why."""
