"""What `headway serve` prints to try it with works, whatever the model takes."""

import asyncio
import dataclasses
import json
import shlex
import subprocess
import types
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
import served_models
from PIL import Image
from real_server import Server

import headway
from headway.cli.greeting import greeting
from headway.config import ModelConfig, ServerConfig
from headway.hosting.hosted import Served
from headway.hosting.registry import Registry
from headway.server.run import make_app
from headway.wire.http1.server import HttpServer


@pytest.mark.parametrize("kind", ["Double", "Arithmetic", "Half", "Upper", "Root", "Letters"])
def test_the_curl_line_works(server: Server, kind: str) -> None:
    model: Any = getattr(served_models, kind)()
    registry = Registry()
    registry.add(Served(ModelConfig(name=kind.lower(), target="x:Y"), model=model))
    said = greeting(registry, server.url, None)
    [line] = [line for line in said.splitlines() if line.strip().startswith("curl")]
    words = shlex.split(line)
    [url] = [word for word in words if word.startswith("http")]
    answer = server.http.post(url, content=words[words.index("-d") + 1])
    assert answer.status_code == 200, answer.text
    assert "openai" not in said  # none of them embeds


class Priced(pydantic.BaseModel):
    price: float = pydantic.Field(gt=0, le=10)
    tags: list[str] = pydantic.Field(min_length=2)


class Anything(headway.Model[Any, Any]):
    def predict(self, items):  # type: ignore[no-untyped-def]
        return items


class Photo(headway.Model[Any, Any]):
    def predict(self, items: list[Image.Image]) -> list[tuple[int, int]]:
        return [item.size for item in items]


@dataclasses.dataclass
class Note:
    """Its example has a quote that a shell would stumble over."""

    text: Literal["it's"]
    corner: tuple[int, str]
    picture: bytes
    level: Annotated[int, msgspec.Meta(ge=5)]
    maybe: str | None = None


class Bytes(headway.Model[bytes, int]):
    def predict(self, items: list[bytes]) -> list[int]:
        return [len(item) for item in items]


class Notes(headway.Model[Note, str]):
    def predict(self, items: list[Note]) -> list[str]:
        return [f"{item.text} {item.corner}" for item in items]


class Tuples(headway.Model[tuple[int, float], float]):
    def predict(self, items: list[tuple[int, float]]) -> list[float]:
        return [a * b for a, b in items]


class Models(headway.Model[Any, Any]):
    def predict(self, items: list[Priced]) -> list[Priced]:
        return items


class Spell(headway.Model[Any, Any]):
    def stream(self, items: list[str]):  # type: ignore[no-untyped-def]
        for step in range(max(map(len, items)) + 1):
            yield [item[step] if step < len(item) else headway.END for item in items]


@pytest.mark.real_time
@pytest.mark.parametrize("kind", [Bytes, Notes, Tuples, Models, Spell, Photo])
async def test_the_printed_line_works_when_pasted(kind: Any) -> None:
    registry = Registry()
    served = Served(ModelConfig(name="it", target="x:Y", warm_up=False), model=kind())
    registry.add(served)
    await served.start()
    config = ServerConfig(port=0, grpc_port=-1, drain_s=1)
    async with HttpServer(make_app(registry, config), config) as http:
        said = greeting(registry, http.url, None)
        [line] = [line for line in said.splitlines() if line.strip().startswith("curl")]
        command = f"{line.strip()} -s -o /dev/null -w '%{{http_code}}'"
        pasted = await asyncio.to_thread(
            subprocess.run, ["bash", "-c", command], capture_output=True, text=True, timeout=20
        )
    await served.close(drain_s=1)
    assert pasted.stdout == "200", line


class Rows(headway.Model[Any, Any]):
    def predict(self, items: list[dict[str, Any]]) -> list[Any]:
        return items


@pytest.mark.parametrize(("kind", "is_said"), [(Anything, True), (Rows, True), (Notes, False)])
def test_where_hints_say_nothing_the_line_asks_for_an_input(kind: Any, is_said: bool) -> None:
    registry = Registry()
    registry.add(Served(ModelConfig(name="it", target="x:Y"), model=kind()))
    said = greeting(registry, "http://host:1", None)
    assert ("/v1/predict/it -d INPUT\n" in said) == is_said
    assert ("(INPUT: one value as JSON; the model has no type hints" in said) == is_said


@pytest.mark.parametrize(
    ("takes_chats", "path", "field"),
    [(True, "chat/completions", "messages"), (False, "completions", "prompt")],
)
def test_a_language_model_without_a_chat_template_is_not_to_be_talked_to(
    takes_chats: bool, path: str, field: str
) -> None:
    text = types.SimpleNamespace(takes_chats=takes_chats)
    model: Any = types.SimpleNamespace(
        name="base", version="", is_ready=True, language=types.SimpleNamespace(text=text)
    )
    model.json_schemas, model.inputs, model.outputs = lambda: ({"type": "string"}, {}), [], []
    registry = Registry()
    registry.models = lambda: [model]  # type: ignore[method-assign]
    said = greeting(registry, "http://host:1", None)
    [line] = [line for line in said.splitlines() if line.strip().startswith("curl")]
    words = shlex.split(line)
    assert f"http://host:1/v1/{path}" in words
    body = json.loads(words[words.index("-d") + 1])
    assert body.keys() == {"model", field, "max_tokens", "stream"}
    assert ("/chat\n" in said) == takes_chats


def test_with_keys_the_line_has_a_place_for_one() -> None:
    registry = Registry()
    model = served_models.Upper()
    registry.add(Served(ModelConfig(name="upper", target="x:Y"), model=model))
    said = greeting(registry, "https://host:1", None, has_keys=True)
    [line] = [line for line in said.splitlines() if line.strip().startswith("curl")]
    assert shlex.split(line)[1:3] == ["-H", "Authorization: Bearer $KEY"]


def test_an_open_administration_is_said() -> None:
    assert "without a key" not in greeting(Registry(), "http://host:1", None)
    said = greeting(Registry(), "http://host:1", None, admin_without_key=True)
    assert "may load, unload and drain, without a key" in said
