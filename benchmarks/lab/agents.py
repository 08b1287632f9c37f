"""Three agents in bursts, with one long system prompt: how much of their prompts is computed.

`.venv-llm/bin/python -m benchmarks.lab agents`: a real `headway serve chat`, and clients that
stream. An agent takes turns: it thinks, asks several things about its conversation at once, and
goes on when all are answered; its questions, and what its tools say, are drawn beforehand. The
same trace is also played with a cache salt for each call: then nothing is shared, and there is
nothing to order.
"""

import asyncio
import json
import random
import statistics
import time
from typing import Any, NamedTuple

import httpx

from benchmarks.report import Bar, Benchmark, Report
from benchmarks.tool_calls import PYTHON, running

AGENTS, TURNS, SEED = 3, 2, 31
SYSTEM = 2000  # tokens
QUESTION, RESULT = (20, 60), (40, 120)  # words
TOKENS = 12  # of an answer
TEXT = (
    "the of and to in is you that it he was for on are as with his they at be this have from or "
    "one had by word but not what all were we when your can said there use an each which she do"
)


class Call(NamedTuple):
    sent: int  # tokens of the prompt
    cached: int
    awaited: int
    first_s: float


class Turn(NamedTuple):
    thinks_s: float
    questions: list[str]
    result: str


def trace(agent: int, turns: int) -> list[Turn]:
    draw = random.Random(SEED * 100 + agent)
    return [
        Turn(
            draw.expovariate(2.0),
            [_words(draw, *QUESTION) for _ in range(draw.randint(1, 5))],
            _words(draw, *RESULT),
        )
        for _ in range(turns)
    ]


def _words(draw: random.Random, least: int, most: int) -> str:
    return " ".join(draw.choices(TEXT.split(), k=draw.randint(least, most)))


async def play(url: str, turns: int, *, is_shared: bool) -> list[Call]:
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        system = await _system(client, is_shared)
        agents = (_agent(client, system, trace(each, turns), is_shared) for each in range(AGENTS))
        return [call for calls in await asyncio.gather(*agents) for call in calls]


async def warm(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        await _call(client, [{"role": "user", "content": "Hello"}], is_shared=True)


async def _system(client: httpx.AsyncClient, is_shared: bool) -> str:
    """A system prompt of its own for each run: what ran before has left nothing in the cache."""
    words = random.Random(SEED + is_shared).choices(TEXT.split(), k=SYSTEM)
    while True:
        answer = await client.post("/tokenize", json={"prompt": " ".join(words)})
        if answer.json()["count"] <= SYSTEM:
            return " ".join(words)
        words.pop()


async def _agent(
    client: httpx.AsyncClient, system: str, turns: list[Turn], is_shared: bool
) -> list[Call]:
    said = [{"role": "system", "content": system}]
    calls: list[Call] = []
    for turn in turns:
        await asyncio.sleep(turn.thinks_s)
        asked = [[*said, {"role": "user", "content": each}] for each in turn.questions]
        calls += await asyncio.gather(*(_call(client, each, is_shared=is_shared) for each in asked))
        said = [*asked[0], {"role": "assistant", "content": turn.result}]
    return calls


async def _call(client: httpx.AsyncClient, messages: list[dict[str, str]], is_shared: bool) -> Call:
    body: dict[str, Any] = {"messages": messages, "max_tokens": TOKENS, "ignore_eos": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
    if not is_shared:
        body["cache_salt"] = random.randbytes(8).hex()
    began, first_s, chunks = time.perf_counter(), 0.0, []
    told = {"Headway-Explain": "1"}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=told) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                chunks.append(json.loads(line[6:]))
                if not first_s and any(
                    each["delta"].get("content") for each in chunks[-1]["choices"]
                ):
                    first_s = time.perf_counter() - began
    (usage,) = (each["usage"] for each in chunks if each.get("usage"))
    (met,) = next(each["headway"] for each in chunks if "headway" in each)
    return Call(usage["prompt_tokens"], met["cached_tokens"], met["awaited_tokens"], first_s)


def agents(quick: bool) -> Report:
    turns = 1 if quick else TURNS
    command = [PYTHON, "-m", "headway", "serve", "chat", "--max-context=4096", "--kv-cache-gib=1"]
    with running([*command, "--port=0", "--grpc-port=-1"]) as url:
        asyncio.run(warm(url))
        without, shared = (asyncio.run(play(url, turns, is_shared=each)) for each in (False, True))
    part = _computed(shared) / sum(each.sent for each in shared)
    sooner = _p50(without) / _p50(shared)
    return Report(
        "Three agents, one system prompt of 2,000 tokens",
        ["", "calls", "tokens sent", "computed", "waited for", "first token, p50", "the last"],
        [
            [
                name,
                len(calls),
                sum(each.sent for each in calls),
                _computed(calls),
                sum(each.awaited for each in calls),
                f"{_p50(calls):.2f} s",
                f"{max(each.first_s for each in calls):.2f} s",
            ]
            for name, calls in (("shared", shared), ("without", without))
        ],
        [
            Bar("prompt tokens computed ÷ sent ≤ 0.25", f"{part:.2f}", part <= 0.25),
            Bar("p50 first token ≥ 3× sooner than without", f"{sooner:.1f}×", sooner >= 3),
        ],
        [f"{AGENTS} agents, {turns} turns of 1 to 5 calls at once; seed {SEED}"],
    )


def _computed(calls: list[Call]) -> int:
    return sum(each.sent - each.cached for each in calls)


def _p50(calls: list[Call]) -> float:
    return statistics.median(each.first_s for each in calls)


BENCHMARKS: dict[str, Benchmark] = {"agents": agents}
