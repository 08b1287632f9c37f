"""The token-level engine: runs the steps that `core.generation` decides. Needs torch.

Modules here import torch at their top: the engine is torch code. Everything outside imports the
engine lazily, so that Headway without a language model never loads torch.
"""
