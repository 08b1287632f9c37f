"""The engine's own kernels for CPUs, in C: compiled once, where there is a compiler."""
