"""Tests of the engine. They need torch and transformers: `make test-llm` has an environment."""

import importlib.util

collect_ignore_glob: list[str] = []
if not all(importlib.util.find_spec(name) for name in ("torch", "transformers", "safetensors")):
    collect_ignore_glob.append("test_*.py")
else:
    import torch

    torch.set_num_threads(1)
