"""Every figure in RESULTS.md, by one command: `make bench`. Benchmarks are not tests."""
