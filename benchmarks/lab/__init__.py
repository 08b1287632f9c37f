"""Benchmarks of single parts, and tools for whoever changes them: `python -m benchmarks.lab`."""
