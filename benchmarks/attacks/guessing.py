"""Does a guess that is nearly right take another time?"""

import contextlib
import http.client
import statistics
import time
from collections.abc import Callable

from benchmarks.attacks.scene import Outcome, Target
from benchmarks.attacks.sockets import LIMIT_S
from headway.config import KeyConfig
from headway.errors import Unauthenticated
from headway.server.auth.keys import KeyRing, new_key


def key_guessing(target: Target) -> Outcome:
    """Does a guess that is nearly right take another time? By Welch's t, as dudect does it."""
    key = new_key()
    ring = KeyRing([KeyConfig(id="a", hash=key.hash, tenant="a")], 0.0)
    near = key.key[:-1] + ("A" if key.key[-1] != "A" else "B")
    far = "hw-" + "".join(reversed(key.key[3:]))
    here = welch(lambda guess: _guess(ring, guess), near, far, count=40_000)
    with contextlib.closing(_Guesser(target)) as guesser:
        afar = welch(guesser.guess, _near(target.key), far, count=2_000)
    return Outcome(
        "all but the last letter right against all wrong: 40,000 in process, 2,000 over HTTP",
        f"401 each; t = {here:.1f} and {afar:.1f}, from 4.5 on a difference would show",
        here < 4.5 and afar < 4.5,
    )


class _Guesser:
    """Guesses over one connection."""

    def __init__(self, target: Target) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=LIMIT_S)

    def guess(self, key: str) -> None:
        self._connection.request("GET", "/v2/models", headers={"X-Api-Key": key})
        answer = self._connection.getresponse()
        answer.read()
        assert answer.status == 401, answer.status

    def close(self) -> None:
        self._connection.close()


def _near(key: str) -> str:
    return key[:-1] + ("A" if key[-1] != "A" else "B")


def _guess(ring: KeyRing, key: str) -> None:
    with contextlib.suppress(Unauthenticated):
        ring.find({"x-api-key": key})
        raise AssertionError("a guess was right")


def welch(guess: Callable[[str], None], near: str, far: str, *, count: int) -> float:
    """|t| of the two times, in turns, the slowest tenth (the machine's own business) left out."""
    times: dict[str, list[int]] = {near: [], far: []}
    for turn in range(count):
        for key in (near, far) if turn % 2 else (far, near):
            started = time.perf_counter_ns()
            guess(key)
            times[key].append(time.perf_counter_ns() - started)
    cut = sorted(times[near] + times[far])[int(2 * count * 0.9)]
    kept = [[each for each in times[key] if each <= cut] for key in (near, far)]
    means = [statistics.fmean(each) for each in kept]
    errors = [
        statistics.variance(each, mean) / len(each) for each, mean in zip(kept, means, strict=True)
    ]
    return abs(means[0] - means[1]) / (sum(errors) ** 0.5 or 1.0)
