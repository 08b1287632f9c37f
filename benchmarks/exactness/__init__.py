"""Is an answer exact? Tiny models, files and texts, each compared with its own library.

`python -m benchmarks.exactness [group …] [--short]`
"""
