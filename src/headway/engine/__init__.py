"""The token-level engine: runs the steps that `core.generation` decides. Needs torch.

Modules here import torch at their top: the engine is torch code. (`support` and `architecture` do
not: they judge a config.json before an engine is started.) Everything outside imports the engine
lazily, so that Headway without a language model never loads torch.
"""

import os

# torch's threads wait for each other more than a hundred times a step. By default they spin
# meanwhile, and where another process wants the cores, a thread that spins keeps from them the
# very thread that it waits for: on a busy machine an answer took fifty times as long. Asleep,
# they are woken at once. Read when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
