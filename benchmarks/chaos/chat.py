"""`python -m benchmarks.chaos.chat [--seed N] [--kills N] [--dtype D]`: exits 1 if anything broke.

A real server with a language model whose cache is too small for its load. Its engine is killed and
stopped in the middle of streams, clients leave in the middle of streams, and some prompts are too
long. Every answer is known: it is asked for once before anything is disturbed.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.chaos import resources
from benchmarks.chaos.server import Server, served

WORDS = ("rain", "bread", "trains", "glass", "the moon", "salt", "chess", "wool", "rivers", "ink")
CLIENTS = 12
TOKENS = 48
BACK_S = 120.0  # for the engine to come back, on a busy machine
_FIGURE = re.compile(r"^headway_(num_requests_running|num_requests_waiting|kv_cache_usage_perc"
                     r"|num_preemptions_total)\{.*\} (\S+)$", re.MULTILINE)  # fmt: skip

TOML = """
[server]
port = 0
grpc_port = -1
cache_dir = "cache"
admin_without_key = true

[[models]]
name = "chat"
target = "{target}"
dtype = "{dtype}"
max_sequences = 8
max_context = 256
kv_cache_gib = {kv_cache_gib}
heartbeat_timeout_s = 5
"""


@dataclass(slots=True)
class Account:
    """What became of every request, and what must never be."""

    outcomes: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    kills: int = 0


class Chaos:
    def __init__(self, server: Server, seed: int, kills: int) -> None:
        self._server = server
        self._rng = random.Random(seed)
        self._kills = kills
        self._client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{server.http_port}",
            timeout=BACK_S,
            limits=httpx.Limits(max_connections=None),
        )
        self._whole: dict[str, str] = {}
        self._streaming = 0  # clients that have seen a part of their answer
        self._moved = asyncio.Event()
        self._is_over = False
        self.account = Account()

    async def run(self) -> None:
        async with self._client:
            answers = await asyncio.gather(*(self._answer(word) for word in WORDS))
            self._whole = dict(zip(WORDS, answers, strict=True))
            async with asyncio.TaskGroup() as tasks:
                for number in range(CLIENTS):
                    tasks.create_task(self._keep_asking(random.Random(f"{self._rng}{number}")))
                tasks.create_task(self._disturb())
            await self._wait_for(self._is_ready)
            await self._wait_for(self._is_idle)
            self._check_end()

    # ---- clients

    def _body(self, word: str, **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": f"Tell me about {word}, please."}]
        options = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
        return {"model": "chat", "messages": messages, **options, **fields}

    async def _answer(self, word: str) -> str:
        answer = await self._client.post("/v1/chat/completions", json=self._body(word))
        answer.raise_for_status()
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text

    async def _keep_asking(self, rng: random.Random) -> None:
        while not self._is_over:
            kind = rng.choices(("whole", "leaves", "too long"), (8, 2, 1))[0]
            word = rng.choice(WORDS)
            if kind == "too long":
                await self._ask_too_much()
            else:
                leaves = rng.randrange(1, TOKENS // 2) if kind == "leaves" else None
                await self._stream(word, leaves)

    async def _ask_too_much(self) -> None:
        body = self._body("words " * 2000)
        answer = await self._client.post("/v1/chat/completions", json=body)
        if answer.status_code == 503:
            await self._refused()
            return
        code = answer.json()["error"]["code"]
        self.account.outcomes["too long"] += 1
        if (answer.status_code, code) != (400, "context_length_exceeded"):
            self.account.broken.append(f"too long a prompt: {answer.status_code} {code}")

    async def _stream(self, word: str, leaves: int | None) -> None:
        body = self._body(word, stream=True)
        events: list[str] = []
        async with self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code == 503:
                await answer.aread()
                await self._refused()
                return
            self._streaming += 1
            self._moved.set()
            try:
                async for line in answer.aiter_lines():
                    events += [line[6:]] if line.startswith("data: ") else []
                    if leaves is not None and len(events) > leaves:
                        self.account.outcomes["left"] += 1
                        return
            finally:
                self._streaming -= 1
        self._check_stream(word, events)

    async def _refused(self) -> None:
        self.account.outcomes["refused while the engine was away"] += 1
        await self._wait_for(self._is_ready)

    def _check_stream(self, word: str, events: list[str]) -> None:
        chunks = [json.loads(each) for each in events if each != "[DONE]"]
        errors = [each["error"] for each in chunks if "error" in each]
        choices = [choice for each in chunks for choice in each.get("choices", ())]
        text = "".join(each["delta"].get("content") or "" for each in choices)
        ends = [each["finish_reason"] for each in choices if each.get("finish_reason")]
        if errors:
            self.account.broken.append(f"{word}: {errors[0]}")
        elif ends != ["length"] or events.count("[DONE]") != 1:
            self.account.broken.append(f"{word}: ended {len(ends)} times: {events[-2:]}")
        elif text != self._whole[word]:
            self.account.broken.append(f"{word}: {text!r} is not {self._whole[word]!r}")
        self.account.outcomes["whole"] += 1

    # ---- faults

    async def _disturb(self) -> None:
        try:
            for number in range(self._kills):
                await self._wait_for(self._is_ready)
                await self._wait_streams(CLIENTS // 2)
                (worker,) = await asyncio.to_thread(self._server.workers)
                if worker["pid"] is not None:
                    how = signal.SIGSTOP if number % 3 == 2 else signal.SIGKILL
                    os.kill(worker["pid"], how)
                    self.account.kills += 1
                await self._wait_for(lambda before=worker["restarts"]: self._is_back(before))
        finally:
            self._is_over = True

    async def _wait_streams(self, least: int) -> None:
        while self._streaming < least:
            self._moved.clear()
            await self._moved.wait()

    # ---- what the server says

    async def _wait_for(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Asks again and again: the server does not announce it."""
        async with asyncio.timeout(BACK_S):
            while not await is_so():  # noqa: ASYNC110  nothing here is told of it
                await asyncio.sleep(0.05)

    async def _is_ready(self) -> bool:
        return (await self._client.get("/v2/health/ready")).status_code == 200

    async def _is_back(self, restarts: int) -> bool:
        (worker,) = await asyncio.to_thread(self._server.workers)
        return worker["restarts"] > restarts and worker["state"] == "ready"

    async def _is_idle(self) -> bool:
        figures = self._figures()
        return not any(figures[name] for name in figures if "preemptions" not in name)

    def _figures(self) -> dict[str, float]:
        return {name: float(value) for name, value in _FIGURE.findall(self._server.metrics())}

    def _check_end(self) -> None:
        if not self._figures()["num_preemptions_total"]:
            self.account.broken.append("the cache was never exhausted")
        if self.account.kills < self._kills:
            self.account.broken.append(f"only {self.account.kills} engines were lost")


def run(
    target: str, *, seed: int, kills: int, kv_cache_gib: float, dtype: str = "bfloat16"
) -> Account:
    with tempfile.TemporaryDirectory(prefix="headway-chaos-") as folder:
        toml = TOML.format(target=target, kv_cache_gib=kv_cache_gib, dtype=dtype)
        with served(Path(folder), toml) as server:
            chaos = Chaos(server, seed, kills)
            asyncio.run(chaos.run())
            processes = resources.children_of(server.pid)
        account = chaos.account
        account.broken += [f"in the log: {line}" for line in server.complaints()]
        account.broken += [f"left behind: {pid}" for pid in processes if _exists(pid)]
        if server.exit_code != 0:
            account.broken.append(f"the server's exit status is {server.exit_code}")
    return account


def _exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos.chat", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the requests")
    parser.add_argument("--kills", type=int, default=5, help="engines to lose (default: 5)")
    parser.add_argument("--target", default="chat", help="the language model (default: chat)")
    parser.add_argument("--kv-cache-gib", type=float, default=0.011, help="too little for the load")
    parser.add_argument("--dtype", default="bfloat16", help="float32 needs twice the cache")
    given = parser.parse_args()
    account = run(
        given.target,
        seed=given.seed,
        kills=given.kills,
        kv_cache_gib=given.kv_cache_gib,
        dtype=given.dtype,
    )
    told = ", ".join(f"{count} {what}" for what, count in sorted(account.outcomes.items()))
    print(f"chat: {account.kills} engines lost; {told}; {len(account.broken)} broken")
    print("\n".join(account.broken[:20]))
    return 1 if account.broken else 0


if __name__ == "__main__":
    sys.exit(main())
