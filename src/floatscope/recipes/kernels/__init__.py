"""Kernels of recipes: one file a backend and task."""
