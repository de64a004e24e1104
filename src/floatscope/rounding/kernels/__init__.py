"""Kernels of rounding: one file a backend and task; tests hold them to one another bit for bit."""
