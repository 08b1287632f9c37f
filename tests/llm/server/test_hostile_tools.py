"""Tools whose schemas are made to cost: each is refused by its name or answered, and soon; chats
beside them get the same texts."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from serving import MOST_S, Serving, serving
from tool_models import build_with_tools

pytest.importorskip("llguidance", reason="headway[llm] brings it")
pytestmark = pytest.mark.real_time


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


HOSTILE: dict[str, dict[str, Any]] = {
    "exponential regex": {"properties": {"a": {"type": "string", "pattern": "^(a|aa|b)*a.{40}$"}}},
    "nested repeats": {
        "properties": {"a": {"type": "string", "pattern": "((a{1,99}){1,99}){1,99}"}}
    },
    "1 MiB": {"properties": {"a": {"type": "string", "description": "x" * 2**20}}},
    "10,000 values": {"properties": {"a": {"enum": [f"value-{n}" for n in range(10_000)]}}},
    "endless recursion": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    "a tree": {
        "$ref": "#/$defs/t",
        "$defs": {
            "t": {
                "type": "object",
                "properties": {"l": {"$ref": "#/$defs/t"}, "r": {"$ref": "#/$defs/t"}},
            }
        },
    },
    "many at once": {
        "allOf": [
            {"properties": {"a": {"type": "string", "pattern": f"(.*[a-{chr(98 + n)}]){{9}}"}}}
            for n in range(20)
        ]
    },
    "deep": deep(200),
    "multiple": {"properties": {"a": {"type": "integer", "multipleOf": 99_999_999_977}}},
    "wide": {"properties": {f"p{n}": {"type": "string", "format": "uri"} for n in range(60)}},
}  # fmt: skip
PLAIN = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 40,
    "temperature": 0,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = build_with_tools("hermes", tmp_path_factory.mktemp("hermes"))
    with serving(folder, max_context=4096, kv_cache_gib=0.05) as found:
        yield found


def call(served: Serving, schema: dict[str, Any]) -> httpx.Response:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    body = {
        **PLAIN,
        "max_tokens": 8,
        "ignore_eos": None,
        "tools": [tool],
        "tool_choice": "required",
    }
    return httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=MOST_S)


def plain(served: Serving) -> str:
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=PLAIN, timeout=MOST_S)
    return str(answer.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_schema(served: Serving, kind: str) -> None:
    alone = plain(served)
    with ThreadPoolExecutor(5) as threads:
        neighbours = [threads.submit(plain, served) for _ in range(4)]
        answer = threads.submit(call, served, HOSTILE[kind]).result()
        assert [each.result() for each in neighbours] == [alone] * 4
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["param"].startswith("tools")
