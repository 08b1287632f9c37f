"""Texts of very different lengths, served: what composing them buys, beside order of arrival."""

import time

import msgspec

from benchmarks.load import AskedRequest, Generator, post
from benchmarks.report import Bar, Benchmark, Report
from benchmarks.serving import _offline_rates, _texts, fresh_cache, serving

P99_MS = 250.0
WINDOW_S = 5.0
OURS = ("headway-minilm", "headway-minilm-fifo")
PEERS = ("litserve-minilm", "mosec-minilm")


def lengths(quick: bool) -> Report:
    # A peer's batch of 64 takes eight seconds: a shorter run would see none come back.
    seconds, rounds = (24.0, 1) if quick else (30.0, 2)
    texts = _texts(256)
    offline = _offline_rates(texts, seconds=2.0 if quick else 4.0)
    closed: dict[str, list[float]] = {}
    highest: dict[str, float] = {}
    with fresh_cache():
        for number in range(rounds):
            for name in (*OURS, *PEERS):
                with serving(name) as server, server.loaded(_exchanges(name, texts)) as generator:
                    _wait_answering(generator)
                    closed.setdefault(name, []).append(generator.closed(64, seconds).per_s)
                    if number == 0 and name in OURS:
                        _wait_calm(generator)
                        highest[name] = highest_rate(generator, seconds / 2)
    again = _offline_rates(texts, seconds=2.0 if quick else 4.0)
    best = max((a + b) / 2 for a, b in zip(offline.values(), again.values(), strict=True))
    rates = {name: sum(each) / len(each) for name, each in closed.items()}
    ours, peer = rates[OURS[0]], max(rates[name] for name in PEERS)
    ratio = highest[OURS[0]] / max(highest[OURS[1]], 0.1)
    return Report(
        "L1. minilm, one thread, texts of 5–256 tokens: composed, and in order of arrival",
        ["server", "64 connections, texts/s", "highest Poisson rate with p99 < 250 ms"],
        [
            ["headway", f"{ours:.1f}", f"{highest[OURS[0]]:.1f}"],
            [
                "headway, window, in order, padded",
                f"{rates[OURS[1]]:.1f}",
                f"{highest[OURS[1]]:.1f}",
            ],
            *(
                [f"{name.partition('-')[0]}, in order, padded", f"{rates[name]:.1f}", ""]
                for name in PEERS
            ),
            ["offline, the best fixed batch size", f"{best:.1f}", ""],
        ],
        [
            Bar("64 connections: ≥ 4 × the best peer", f"{ours / peer:.1f} ×", ours >= 4 * peer),
            Bar("≥ the best offline rate", f"{ours / best:.0%}", ours >= best),
            Bar("open loop: ≥ 2 × in order", f"{ratio:.1f} ×", ratio >= 2),
        ],
        [
            "the model is the same in all; every server takes at most 64 texts at once and waits "
            "at most 5 ms for more, ours as long as it finds right",
            f"p99 of the median {WINDOW_S:g} s of each rate that was tried",
            "offline: the mean of a run before and one after, the best of 1, 2, 4 … 64 texts",
        ],
    )


def _wait_answering(generator: Generator) -> None:
    """Servers listen before their model is loaded."""
    for _ in range(120):
        failed, generator.last_failure = generator.last_failure, ""
        generator.one_ms()
        if not generator.last_failure:
            return
        time.sleep(0.5)
    raise RuntimeError(f"it does not become ready: {failed!r}")


def _wait_calm(generator: Generator) -> None:
    """What was too much is still in the server."""
    while generator.one_ms() > P99_MS:
        pass


def _exchanges(name: str, texts: list[str]) -> list[AskedRequest]:
    path = "/inference" if name in PEERS else "/v1/embeddings"
    return [
        post(path, msgspec.json.encode({"model": "minilm", "input": text}), b'"embedding"')
        for text in texts
    ]


def highest_rate(generator: Generator, seconds: float) -> float:
    """By halving, up to 96 a second."""
    low, high = 0.0, 96.0
    for _ in range(6):
        rate = (low + high) / 2
        load = generator.poisson(rate, seconds)
        if load.steady_p99_ms(WINDOW_S) < P99_MS and not load.unanswered and not load.failed:
            low = rate
        else:
            high = rate
        _wait_calm(generator)
    return low


BENCHMARKS: dict[str, Benchmark] = {"lengths": lengths}
