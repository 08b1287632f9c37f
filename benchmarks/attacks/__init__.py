"""Attacks on a real server with keys, while honest clients are served beside them.

    python -m benchmarks attacks
    .venv-llm/bin/python -m benchmarks attacks-chat

Over HTTP, below a prefix of another application, over gRPC;
without a key and with one; and on a language model. The attacker comes from 127.0.0.2, the clients
from 127.0.0.1, so that limits for one address can tell them apart. The server has one core;
attackers and clients share another, which is the clients' whenever they want it. Every limit is
small here, so that it is reached soon.
"""

from benchmarks.attacks.run import attacks, chat_attacks
from benchmarks.report import Benchmark

BENCHMARKS: dict[str, Benchmark] = {"attacks": attacks}
ON_DEMAND: dict[str, Benchmark] = {"attacks-chat": chat_attacks}
