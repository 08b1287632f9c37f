"""`.venv-llm/bin/python -m benchmarks.lab.chat_front`: what a token costs the server's own process.

64 streams at once, of few tokens and of many: the difference is what tokens cost, the rest is what
it takes to open and close a stream. The engine is a process of its own that says letters, and needs
no torch; clients are another. CPU time, not time: but on a busy machine that grows, too.
"""

import asyncio
import functools
import hashlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import uvloop

import headway
from benchmarks.report import Bar, Benchmark, Report
from headway.config import KeyConfig, ModelConfig, ServerConfig
from headway.core.generation.limits import EngineLimits
from headway.core.generation.options import generation_options
from headway.hosting.generation.pieces import Generation
from headway.hosting.generation.served import ServedGenerator
from headway.hosting.registry import Ask, Registry
from headway.models.chat.model import LanguageModel
from headway.server.auth.guard import Guard
from headway.server.run import make_app
from headway.wire.http1.server import HttpServer

STREAMS, FEW, MANY, ROUNDS = 64, 40, 240, 7
_FIRST = 5  # letters come after the special tokens
_SPECIALS = ("<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>")
_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
_CLIENT = """
import json, select, socket, sys
port, count, body, key = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode(), sys.argv[4]
head = f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: a\\r\\nAuthorization: Bearer {key}\\r\\n"
head += f"Content-Type: application/json\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
streams, poller = {}, select.poll()
for _ in range(count):
    stream = socket.create_connection(("127.0.0.1", port))
    stream.sendall(head.encode() + body)
    streams[stream.fileno()] = [stream, b""]
    poller.register(stream, select.POLLIN)
events = 0
while streams:
    for fd, _ in poller.poll():
        data = streams[fd][0].recv(65536)
        events += data.count(b"data: ")
        streams[fd][1] = (streams[fd][1] + data)[-32:]
        if not data or b"[DONE]" in streams[fd][1]:
            poller.unregister(fd)
            del streams[fd]
print(events)
"""


class Cost(NamedTuple):
    """Microseconds."""

    token: float
    stream: float  # to open it and to close it

    @property
    def together(self) -> float:
        """A token, with its part of the opening, in a stream of 200."""
        return self.token + self.stream / 200


class _Done(NamedTuple):
    tokens: list[int]
    logprobs: list[Any]
    seconds: None = None
    broken: Mapping[int, str] = MappingProxyType({})

    def result(self) -> "_Done":
        return self


class LetterRunner:
    """A step a millisecond: the front is idle in between, as it is with a real engine."""

    depth = 1
    computes = "letters"

    def __init__(self) -> None:
        self.limits = EngineLimits(
            blocks=4096, max_context=1024, max_sequences=STREAMS, step_tokens=4 * STREAMS
        )
        self.vocabulary = len(_SPECIALS) + 256
        self.matcher_of: Any = None
        self._never = threading.Event()
        self._steps = 0

    def add(self, *arguments: Any, generated: Sequence[int] = ()) -> None: ...

    def drop(self, sequence: int) -> None: ...

    def start(self, step: Any) -> _Done:
        self._never.wait(0.001)
        self._steps += 1
        count = len(step.sampled)
        return _Done([_FIRST + 65 + self._steps % 26] * count, [None] * count)


class Letters(LanguageModel):
    def engine(self, options: Mapping[str, Any]) -> Any:
        return LetterRunner()


class LetterGenerator(headway.Generator):
    def _language_model(self) -> LanguageModel:
        return Letters(self._target)


def save_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {each: index for index, each in enumerate([*_SPECIALS, *letters])}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, normalized=False) for each in _SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": _TEMPLATE}))
    (folder / "config.json").write_text("{}")


async def measure(folder: Path) -> dict[str, Cost]:
    """By the way that a token takes."""
    config = ModelConfig(name="chat", target=str(folder), max_sequences=STREAMS)
    model = ServedGenerator(config, Letters(str(folder)))
    registry = Registry()
    registry.add(model)
    await model.start()
    key = KeyConfig(id="a", hash="sha256:" + hashlib.sha256(b"secret").hexdigest(), tenant="a")
    server = ServerConfig(port=0, grpc_port=-1)
    found = {}
    try:
        for name, keys in (("SSE", ()), ("SSE behind a key", (key,))):
            guard = Guard(server, keys)
            app = make_app(registry, server, guard=guard)
            async with HttpServer(app, server) as http:
                port = int(http.url.rpartition(":")[2])
                found[name] = await _cost(functools.partial(_over_http, port))
        found["in process"] = await _cost(functools.partial(_in_process, model))
    finally:
        await model.close()
    async with LetterGenerator(str(folder)) as generator:
        found["Generator.stream"] = await _cost(functools.partial(_by_tasks, generator))
    return found


async def _cost(run: Callable[[int], Awaitable[float]]) -> Cost:
    """`run` reads all streams to their ends and returns its seconds. The best round counts."""
    few, many = [], []
    for _ in range(ROUNDS):
        few.append(await run(FEW))
        many.append(await run(MANY))
    a_token = (min(many) - min(few)) / (MANY - FEW)
    return Cost(a_token / STREAMS * 1e6, (min(few) - FEW * a_token) / STREAMS * 1e6)


async def _over_http(port: int, tokens: int) -> float:
    messages = [{"role": "user", "content": "Hello"}]
    options = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    body = json.dumps({"model": "chat", "messages": messages, **options})
    arguments = (str(port), str(STREAMS), body, "secret")
    began = time.process_time()
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CLIENT, *arguments, stdout=subprocess.PIPE
    )
    said, _ = await client.communicate()
    seconds = time.process_time() - began
    assert int(said) >= STREAMS * tokens, said
    return seconds


async def _in_process(model: ServedGenerator, tokens: int) -> float:
    """As a sink of the server has it: a call for each stream of a step."""
    options = generation_options({"max_tokens": tokens, "temperature": 0, "ignore_eos": True})
    began, seen = time.process_time(), 0
    ended, over = asyncio.Semaphore(0), set[Any]()

    def follow(stream: Any) -> Callable[[], None]:
        def look() -> None:
            nonlocal seen
            seen += len(stream.take())
            if stream.is_at_end() and stream not in over:  # it may be told so more than once
                over.add(stream)
                ended.release()

        return look

    for _ in range(STREAMS):
        stream = await model.open_stream(Generation(((1, 2, 3),), options), Ask())
        stream.attach(follow(stream))
    for _ in range(STREAMS):
        await ended.acquire()
    assert seen >= STREAMS * tokens, seen
    return time.process_time() - began


async def _by_tasks(generator: headway.Generator, tokens: int) -> float:
    """A task for every stream, each with `async for`. The engine's thread is not counted."""

    async def read() -> int:
        pieces = generator.stream([5, 6], max_tokens=tokens, temperature=0, ignore_eos=True)
        return len([piece async for piece in pieces])

    began = time.thread_time()
    seen = sum(await asyncio.gather(*[read() for _ in range(STREAMS)]))
    assert seen == STREAMS * tokens, seen
    return time.thread_time() - began


def front(quick: bool) -> Report:
    """As a benchmark among the others."""
    with tempfile.TemporaryDirectory() as name:
        save_tokenizer(Path(name))
        found = uvloop.run(measure(Path(name)))
    asked = {"SSE": 15.0, "SSE behind a key": 15.0, "in process": 5.0, "Generator.stream": 5.0}
    return Report(
        f"The front's CPU a token, {STREAMS} streams at once",
        ["way", "µs a token", "µs to open and close a stream", "together, a token of 200"],
        [
            [way, f"{cost.token:.1f}", f"{cost.stream:.0f}", f"{cost.together:.1f}"]
            for way, cost in found.items()
        ],
        [
            Bar(f"{way} ≤ {most:g} µs", f"{found[way].token:.1f} µs", found[way].token <= most)
            for way, most in asked.items()
        ],
        [
            f"by the difference between streams of {FEW} and of {MANY} tokens, the best of "
            f"{ROUNDS} each; all of the server's process counts; the engine (a step a millisecond, "
            "no torch) and the clients are other processes",
            "`in process`: a reader as the server's own sinks are; `Generator.stream`: a task for "
            "each stream, with `async for`, whose engine's thread is not counted",
        ],
    )


def main() -> int:
    print(front(quick=False).to_markdown())
    return 0


BENCHMARKS: dict[str, Benchmark] = {"chat-front": front}

if __name__ == "__main__":
    from benchmarks.lab.chat_front import main as run  # a name that the engine's process can import

    sys.exit(run())
