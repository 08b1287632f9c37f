"""Attacks on a real server with keys, while honest clients are served beside them.

    python -m benchmarks attacks

Over HTTP, over gRPC on our own HTTP/2 and on grpcio's; without a key and with one. The attacker
comes from 127.0.0.2, the clients from 127.0.0.1, so that limits for one address can tell them
apart. The server has one core; attackers and clients share another. Every limit is small here, so
that it is reached soon.
"""

from benchmarks.attacks.run import attacks
from benchmarks.report import Benchmark

BENCHMARKS: dict[str, Benchmark] = {"attacks": attacks}
