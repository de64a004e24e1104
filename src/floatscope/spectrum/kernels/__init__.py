"""Kernels that fill a tally: one file a backend; tests hold them equal."""
