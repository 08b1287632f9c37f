"""What `headway serve` prints to try it with works, whatever the model takes."""

import shlex
from typing import Any

import pytest
import served_models
from real_server import Server

from headway.cli.greeting import greeting
from headway.config import ModelConfig
from headway.hosting.hosted import Served
from headway.hosting.registry import Registry


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
