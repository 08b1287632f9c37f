"""A thousand random schemas as tools, in batches with plain chats between.

The model has two layers of random weights: it says anything that its grammar lets through, which
no trained model would. It runs in `.venv-llm`; its calls are checked by `jsonschema_rs`, which
knows nothing of the grammars. With JSON_SCHEMA_TEST_SUITE, the folder `tests/draft2020-12` of the
official test suite (the source distribution of `jsonschema` has one, in `json`), its schemas come
first.
"""

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import jsonschema_rs
import numpy

from benchmarks.report import Bar, Benchmark, Report

SCHEMAS, AT_ONCE, SEED = 1_000, 32, 31
ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-llm" / "bin" / "python"
BUILD = (
    "import sys; sys.path.insert(0, 'tests/llm'); from pathlib import Path; "
    "from tool_models import build_with_tools; "
    "build_with_tools('hermes', Path(sys.argv[1]), 'qwen3')"
)
TOKENS = 800  # most of a call: one for each letter
PLAIN_TOKENS = 80
_FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email")


def suite_schemas() -> list[dict[str, Any]]:
    """Those of the test suite, if it is there."""
    folder = os.environ.get("JSON_SCHEMA_TEST_SUITE")
    if folder is None:
        return []
    files = [*Path(folder).glob("*.json"), *Path(folder, "optional", "format").glob("*.json")]
    cases = [case for file in sorted(files) for case in json.loads(file.read_text())]
    return [_argument(case["schema"]) for case in cases]


def random_schema(number: int) -> dict[str, Any]:
    return schema_of(random.Random(SEED + number))


def _argument(schema: Any) -> dict[str, Any]:
    """A schema as that of a tool's only argument; what it refers to in itself moves along."""
    if isinstance(schema, dict):
        schema = {name: value for name, value in schema.items() if name != "$schema"}
    text = re.sub(r'"\$ref": "#(?=[/"])', '"$ref": "#/properties/a', json.dumps(schema))
    return {
        "type": "object",
        "properties": {"a": json.loads(text)},
        "required": ["a"],
        "additionalProperties": False,
    }


def schema_of(draw: random.Random) -> dict[str, Any]:
    """A tool's arguments, of the keywords that tools are described with."""
    names = draw.sample("abcdefghijkl", draw.randint(1, 5))
    needed = draw.sample(names, draw.randint(1, len(names)))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _any(draw, 2) for name in names},
        "required": needed,
        "additionalProperties": False,
    }
    if draw.random() < 0.3:
        schema["$defs"] = {"d": _any(draw, 1)}
        schema["properties"][needed[0]] = {"$ref": "#/$defs/d"}
    return schema


def _any(draw: random.Random, depth: int) -> dict[str, Any]:
    kinds = [_text, _number, _listed, _constant]
    if depth:
        kinds += [_array, _object, _either]
    return draw.choice(kinds)(draw, depth)


def _text(draw: random.Random, depth: int) -> dict[str, Any]:
    way = draw.randrange(3)
    if way == 0:
        return {"type": "string", "format": draw.choice(_FORMATS)}
    if way == 1:
        least, most = draw.randint(0, 3), draw.randint(4, 12)
        return {"type": "string", "pattern": f"^[a-z{draw.choice('0_-')}]{{{least},{most}}}$"}
    return {"type": "string", "minLength": draw.randint(0, 4), "maxLength": draw.randint(4, 20)}


def _number(draw: random.Random, depth: int) -> dict[str, Any]:
    least = draw.randint(-1000, 1000)
    kind = draw.choice(("integer", "number"))
    return {"type": kind, "minimum": least, "maximum": least + draw.randint(1, 1000)}


def _listed(draw: random.Random, depth: int) -> dict[str, Any]:
    values = [1, -2.5, "ein", 'zwei "drei"', "été", None, True, [1, 2], {"k": "v"}]
    return {"enum": draw.sample(values, draw.randint(1, len(values)))}


def _constant(draw: random.Random, depth: int) -> dict[str, Any]:
    return draw.choice([{"const": draw.randint(0, 99)}, {"type": "boolean"}, {"type": "null"}])


def _array(draw: random.Random, depth: int) -> dict[str, Any]:
    least = draw.randint(0, 2)
    items = _any(draw, depth - 1)
    return {"type": "array", "items": items, "minItems": least, "maxItems": least + 2}


def _object(draw: random.Random, depth: int) -> dict[str, Any]:
    names = draw.sample("mnopq", draw.randint(1, 3))
    inner = {name: _any(draw, depth - 1) for name in names}
    return {"type": "object", "properties": inner, "required": names[:1]}


def _either(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_any(draw, depth - 1) for _ in range(draw.randint(2, 3))]}


class Answered(NamedTuple):
    outcome: str  # valid, refused, cut off; or what is wrong
    text: str
    gaps: list[float]  # seconds between the events of a stream
    why: str = ""


async def call(client: httpx.AsyncClient, schema: dict[str, Any], seed: int, salt: str) -> Answered:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    body = {**_body(seed, TOKENS), "tools": [tool], "parallel_tool_calls": False}
    body["cache_salt"] = salt  # in every round the prompt is computed
    answer = (
        await client.post("/v1/chat/completions", json={**body, "tool_choice": "required"})
    ).json()
    if "error" in answer:
        return Answered("refused", "", [], answer["error"]["message"])
    (choice,) = answer["choices"]
    if choice["finish_reason"] == "length":
        return Answered("cut off", "", [])
    (made,) = choice["message"]["tool_calls"]
    try:
        arguments = json.loads(made["function"]["arguments"])
        jsonschema_rs.Draft202012Validator(schema, validate_formats=True).validate(arguments)
    except (ValueError, jsonschema_rs.ValidationError) as error:
        return Answered("wrong", "", [], f"{error} {schema}")
    return Answered("valid", "", [])


async def plain(client: httpx.AsyncClient, seed: int, begun: asyncio.Event) -> Answered:
    body = {**_body(seed, PLAIN_TOKENS), "stream": True, "ignore_eos": True}
    text, gaps, last = "", [], 0.0
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                now = time.perf_counter()
                if last:
                    gaps.append(now - last)
                delta = json.loads(line[6:])["choices"][0]["delta"]
                text += delta.get("content") or ""
                last = now if delta.get("content") else last
                begun.set()
    return Answered("plain", text, gaps)


def _body(seed: int, most: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Say {seed}"}]
    return {"model": "tiny", "messages": messages, "seed": seed, "max_tokens": most}


class Batch(NamedTuple):
    calls: list[Answered]
    chats: list[Answered]


async def batch(client: httpx.AsyncClient, schemas: list[dict[str, Any]], salt: str) -> Batch:
    """Plain chats, and calls that come when all of the chats have begun to stream."""
    begun = [asyncio.Event() for _ in range(AT_ONCE // 2)]
    chats = [asyncio.create_task(plain(client, seed, each)) for seed, each in enumerate(begun)]
    await asyncio.gather(*(each.wait() for each in begun))
    calls = (call(client, schema, seed, salt) for seed, schema in enumerate(schemas))
    return Batch(await asyncio.gather(*calls), await asyncio.gather(*chats))


async def _alone(client: httpx.AsyncClient) -> list[str]:
    return [(await plain(client, seed, asyncio.Event())).text for seed in range(AT_ONCE // 2)]


def _client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=url, timeout=300, limits=httpx.Limits(max_connections=AT_ONCE)
    )


def _parts(schemas: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    for first in range(0, len(schemas), AT_ONCE // 2):
        yield schemas[first : first + AT_ONCE // 2]


async def _all_valid(url: str, schemas: list[dict[str, Any]]) -> tuple[list[Answered], int, int]:
    """All calls; the chats beside them, and how many had the same text as alone."""
    calls: list[Answered] = []
    chats = same = 0
    async with _client(url) as client:
        alone = await _alone(client)
        for part in _parts(schemas):
            both = await batch(client, part, "")
            calls += both.calls
            chats += len(both.chats)
            same += sum(each.text == text for each, text in zip(both.chats, alone, strict=True))
    return calls, chats, same


def tools(quick: bool) -> Report:
    count, suite = 64 if quick else SCHEMAS, suite_schemas()
    schemas = [*suite, *map(random_schema, range(count))][:count]
    with serving() as url:
        calls, chats, same = asyncio.run(_all_valid(url, schemas))
    counted = Counter(each.outcome for each in calls)
    for each in [each for each in calls if each.outcome == "wrong"][:3]:
        sys.stderr.write(f"{each.why}\n")
    finished = counted["valid"] + counted["wrong"]
    drawn = max(0, len(schemas) - len(suite))
    return Report(
        "Schemas as tools, with plain chats between",
        ["schemas", "valid", "cut off by max_tokens", "refused with 400", "wrong"],
        [[len(calls), *(counted[each] for each in ("valid", "cut off", "refused", "wrong"))]],
        [
            Bar("every completed call meets its schema", f"{counted['valid']} of {finished}",
                counted["wrong"] == 0),
            Bar("plain texts as alone", f"{same} of {chats}", same == chats),
        ],
        [
            f"{drawn} schemas are random, {len(schemas) - drawn} of the official test suite; "
            f"{AT_ONCE // 2} calls and {AT_ONCE // 2} plain streams at once; a model of two layers "
            "with random weights"
        ],
    )  # fmt: skip


async def _gaps(url: str, schemas: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Between tokens of the plain chats: beside schemas that are new, and that are known."""
    gaps: dict[str, list[float]] = {"new": [], "known": []}
    async with _client(url) as client:
        await _alone(client)
        for part in _parts(schemas):
            for salt, found in gaps.items():
                both = await batch(client, part, salt)
                found += [gap for each in both.chats for gap in each.gaps]
    return gaps


def stalls(quick: bool) -> Report:
    schemas = [*map(random_schema, range(64 if quick else 192))]
    with serving() as url:
        gaps = asyncio.run(_gaps(url, schemas))
    new, known = (1e3 * float(numpy.quantile(gaps[each], 0.99)) for each in gaps)
    return Report(
        "Streams beside tools with new schemas",
        ["p99 between tokens", "ms"],
        [["new schemas", f"{new:.1f}"], ["the same ones again", f"{known:.1f}"]],
        [
            Bar("p99 between tokens ≤ 1.2× where nothing is compiled",
                f"{new:.1f} and {known:.1f} ms, {new / known:.2f}×", new <= 1.2 * known),
        ],
        [f"{AT_ONCE // 2} calls while {AT_ONCE // 2} chats stream; {len(schemas)} schemas"],
    )  # fmt: skip


@contextmanager
def serving() -> Iterator[str]:
    """The model behind a server of its own."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([PYTHON, "-c", BUILD, folder], cwd=ROOT, check=True)
        command = [PYTHON, "-m", "headway", "serve", folder, "--name=tiny", "--port=0"]
        command += ["--grpc-port=-1", "--kv-cache-gib=0.1", "--max-sequences=64"]
        with running(command) as url:
            yield url


@contextmanager
def running(command: Sequence[str | Path]) -> Iterator[str]:
    """A server's address, until the block ends."""
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield next(
                line.split()[-1] for line in server.stdout if line.strip().startswith("HTTP ")
            )
        finally:
            server.terminate()
            server.communicate()


BENCHMARKS: dict[str, Benchmark] = {"tools": tools}
PARTS: dict[str, Benchmark] = {"tools-stalls": stalls}
