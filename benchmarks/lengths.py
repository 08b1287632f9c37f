"""Texts of very different lengths, served: what composing them buys, beside order of arrival."""

import msgspec

from benchmarks.load import Exchange, Generator, post
from benchmarks.report import Bar, Benchmark, Report
from benchmarks.serving import _offline_rates, _texts, serving

P99_MS = 250.0
SERVERS = ("headway-minilm", "headway-minilm-fifo", "mosec-minilm")


def lengths(quick: bool) -> Report:
    seconds, rounds = (8.0, 1) if quick else (20.0, 2)
    texts = _texts(256)
    offline = _offline_rates(texts, seconds=2.0 if quick else 4.0)
    closed: dict[str, list[float]] = {name: [] for name in SERVERS}
    highest: dict[str, float] = {}
    for number in range(rounds):
        for name in SERVERS:
            with serving(name) as server, server.loaded(_exchanges(name, texts)) as generator:
                generator.closed(64, 3.0)
                closed[name].append(generator.closed(64, seconds).per_s)
                if number == 0 and name.startswith("headway"):
                    highest[name] = highest_rate(generator, seconds / 2)
    again = _offline_rates(texts, seconds=2.0 if quick else 4.0)
    best = max((a + b) / 2 for a, b in zip(offline.values(), again.values(), strict=True))
    ours, fifo, peer = (sum(each) / len(each) for each in closed.values())
    ratio = highest[SERVERS[0]] / max(highest[SERVERS[1]], 0.1)
    return Report(
        "L1. minilm, one thread, texts of 5–256 tokens: composed, and in order of arrival",
        ["server", "64 connections, texts/s", "highest Poisson rate with p99 < 250 ms"],
        [
            ["headway", f"{ours:.1f}", f"{highest[SERVERS[0]]:.1f}"],
            ["headway, window, in order, padded", f"{fifo:.1f}", f"{highest[SERVERS[1]]:.1f}"],
            ["mosec, in order, padded", f"{peer:.1f}", ""],
            ["offline, the best fixed batch size", f"{best:.1f}", ""],
        ],
        [
            Bar("64 connections: ≥ 4 × the peer", f"{ours / peer:.1f} ×", ours >= 4 * peer),
            Bar("≥ the best offline rate", f"{ours / best:.0%}", ours >= best),
            Bar("open loop: ≥ 2 × in order", f"{ratio:.1f} ×", ratio >= 2),
        ],
        ["offline: the mean of a run before and one after"],
    )


def _exchanges(name: str, texts: list[str]) -> list[Exchange]:
    path = "/inference" if name.startswith("mosec") else "/v1/embeddings"
    return [
        post(path, msgspec.json.encode({"model": "minilm", "input": text}), b'"embedding"')
        for text in texts
    ]


def highest_rate(generator: Generator, seconds: float) -> float:
    """By halving, up to 128 a second."""
    low, high = 0.0, 128.0
    for _ in range(6):
        rate = (low + high) / 2
        load = generator.poisson(rate, seconds)
        if load.percentile_ms(99) < P99_MS and not load.unanswered and not load.failed:
            low = rate
        else:
            high = rate
        while generator.one_ms() > P99_MS:  # what was too much is still in the server
            pass
    return low


BENCHMARKS: dict[str, Benchmark] = {"lengths": lengths}
