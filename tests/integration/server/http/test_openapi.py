"""The description of the routes, held against the routes: schemathesis asks what it promises."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import served_models
from real_server import HERE, Server, served

from headway import testing
from headway.config import ServerConfig
from headway.hosting.registry import Registry
from headway.server.auth.keys import hash_of
from headway.server.run import make_app

SHORT, LONG = 5, 300  # examples for each route and phase
RUN_S = 600.0
HOOKS = {"SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(HERE)}


def fuzz(server: Server, folder: Path, *arguments: str) -> None:
    """In a process of its own: its pytest plugin and our strict warnings do not agree."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli"),
            *("--config-file", str(HERE / "schemathesis.toml"), "run", *arguments),
            f"{server.url}/openapi.json",
        ],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1", **HOOKS},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 0, done.stdout


def test_the_routes_keep_what_the_description_promises(server: Server, tmp_path: Path) -> None:
    fuzz(server, tmp_path, "--generation-deterministic", "--max-examples", str(SHORT))


SPELL = """
import headway

class Spell(headway.Model):
    def stream(self, items: list[str]):
        for step in range(max(map(len, items)) + 1):
            yield [item[step] if step < len(item) else headway.END for item in items]
"""


def test_a_stream_of_events_is_as_described(tmp_path: Path) -> None:
    (tmp_path / "spell.py").write_text(SPELL)
    with served(tmp_path, "spell.py", "--port", "0", "--grpc-port", "-1") as server:
        fuzz(server, tmp_path, "--include-path", "/v1/predict/spell", "--max-examples", str(SHORT))


@pytest.mark.slow
def test_they_keep_it_for_long(server: Server, tmp_path: Path) -> None:
    fuzz(server, tmp_path, "--max-examples", str(LONG))


# ---- the document


def document(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.http.get("/openapi.json").json()
    return found


def test_each_model_has_its_own_route_with_its_own_schemas(server: Server) -> None:
    found = document(server)
    assert found["openapi"].startswith("3.1")
    schemas = found["components"]["schemas"]
    assert schemas["upper.item"] == schemas["upper.result"] == {"type": "string"}
    whole = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
    pair = {"type": "array", "items": whole, "minItems": 2, "maxItems": 2}
    assert schemas["arithmetic.item"]["properties"] == {"a": pair, "b": pair}
    asked = found["paths"]["/v1/predict/upper"]["post"]["requestBody"]["content"]
    assert asked["application/json"]["schema"]["anyOf"][0] == {
        "$ref": "#/components/schemas/upper.item"
    }


def test_every_route_is_described(server: Server) -> None:
    """But for those that are for people, programs of another kind, or the server's own operator."""
    others = re.compile(
        r"/docs|/chat|/dashboard|/openapi\.json|/metrics|/admin/.*|/v1/predict/\{model\}(/batch)?"
    )
    known = {
        (method.upper(), path)
        for path, operations in document(server)["paths"].items()
        for method in operations
    }
    app = make_app(Registry(), ServerConfig())
    routes = {
        (row.method, row.template) for row in app.routes if not others.fullmatch(row.template)
    }
    assert routes - known == set()
    assert {each for each in known - routes if "/v1/predict/" not in each[1]} == set()


def test_the_parameters_of_a_path_are_described(server: Server) -> None:
    for path, operations in document(server)["paths"].items():
        for operation in operations.values():
            told = {each["name"] for each in operation.get("parameters", ()) if "in" in each}
            assert told >= set(re.findall(r"\{(\w+)\}", path)), path


def test_operations_have_names_of_their_own(server: Server) -> None:
    names = [
        operation["operationId"]
        for operations in document(server)["paths"].values()
        for operation in operations.values()
    ]
    assert len(names) == len(set(names))


def test_a_model_that_only_streams_takes_one_value_at_a_time(server: Server) -> None:
    paths = document(server)["paths"]
    assert "/v1/predict/letters" in paths
    assert "/v1/predict/letters/batch" not in paths


def test_every_reference_leads_somewhere(server: Server) -> None:
    found = document(server)

    def check(part: Any) -> None:
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str):
                at = found
                for step in part["$ref"].removeprefix("#/").split("/"):
                    at = at[step]
            for each in part.values():
                check(each)
        elif isinstance(part, list):
            for each in part:
                check(each)

    check(found)


def test_every_example_works_as_it_stands(server: Server) -> None:
    found = document(server)
    tried = 0
    for path, operations in found["paths"].items():
        needs_more = re.search(
            "gate|embeddings|rerank|audio|images|sharedmemory|load|completions|messages|responses"
            r"|tokenize|/embed|^/(api/|models/|similarity|predict|ping|$)",
            path,
        )
        if needs_more or "requestBody" not in operations.get("post", {}):
            continue
        content = operations["post"]["requestBody"]["content"]["application/json"]
        for name, example in content["examples"].items():
            if "gate" in name:
                continue
            model = "upper" if name == "typical" else name
            called = path.replace("{model}", model).replace("{version}", "1")
            answer = server.http.post(called, json=example["value"])
            assert answer.status_code == 200, (path, name, answer.text)
            tried += 1
    assert tried > 8


# ---- the page


def test_the_page_is_complete_in_itself(server: Server) -> None:
    answer = server.http.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    links = re.findall(r"""(?:src|href)=["']([^"']+)""", answer.text)
    pages = {"./", "chat", "dashboard", "docs", "#content"}
    assert set(links) == {"openapi.json", "data:,"} | pages, "it loads nothing from anywhere else"
    assert "http://" not in answer.text
    assert "https://" not in answer.text
    assert answer.text.count("openapi.json") >= 2
    assert 'id="key"' in answer.text, "where there are keys, it asks for one"


def test_a_browser_gets_a_page_and_a_program_is_told_what_there_is(server: Server) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    page = server.http.get("/", headers=browser)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert 'href="chat"' in page.text
    assert 'href="docs"' in page.text
    told = server.http.get("/").json()
    assert told["name"] == "headway"
    assert "upper" in told["models"]
    assert told["docs"] == "docs"


def test_routes_that_no_model_here_answers_are_marked(server: Server) -> None:
    found = document(server)
    marked = {
        path
        for path, operations in found["paths"].items()
        for operation in operations.values()
        if operation.get("x-headway-unanswered")
    }
    assert {"/v1/chat/completions", "/v1/rerank", "/v1/audio/transcriptions"} <= marked
    assert {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"} <= marked
    assert not {path for path in marked if path.startswith(("/v1/predict", "/v2/models"))}
    first = found["x-headway-models"][0]
    operations = [each["post"]["operationId"] for each in found["paths"].values() if "post" in each]
    assert first["operation"] in operations


def test_without_a_key_the_root_names_no_model() -> None:
    class Upper(served_models.Upper):
        pass

    key = "hw-" + "a" * 40
    with testing.client(Upper, api_keys={"acme": hash_of(key)}) as client:
        assert client.http.get("/").json()["models"] == []
        shown = client.http.get("/", headers={"Authorization": f"Bearer {key}"}).json()
        assert shown["models"] == ["upper"]
