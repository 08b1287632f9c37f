"""Triton kernels of the engine, one file each. Every one has a plain torch twin in `reference.py`
that gives the same numbers: for tests, and for devices without Triton."""
