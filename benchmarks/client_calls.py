"""`python -m benchmarks client-calls`: every call of clients that people have, counted one by one.

The models are those of the tests; the clients are as they come from PyPI. LiteLLM lives in an
environment of its own: `make .venv-clients/.ready`, or CLIENTS_PYTHON of another.
"""

import asyncio
import base64
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy

from benchmarks.report import Bar, Benchmark, Report

_ROOT = Path(__file__).parents[1]
_TESTS = _ROOT / "tests" / "integration"
_CLIENT_TESTS = _TESTS / "server" / "compatible"
_CLIENTS = os.environ.get("CLIENTS_PYTHON", str(_ROOT / ".venv-clients" / "bin" / "python"))
_MODELS = {
    "words": "served_models:Words",
    "pairs": "served_models:Pairs",
    "mood": "test_other_servers_clients:Mood",
    "photos": "test_other_servers_clients:Bytes",
    "draws": "test_other_servers_clients:Draws",
}
VECTORS = [[3.0, 2.0, 1.0, 1.0], [1.0, 0.0, 1.0, 1.0]]  # of "aab" and "b"
RANKED = [[1, 2.0], [0, 1.0], [2, 0.0]]  # "b", "abc", "z" for "ab"
DOCUMENTS = ["b", "abc", "z"]
Call = Callable[[str], bool]


def client_calls(quick: bool) -> Report:
    with _serving() as url:
        families = {
            "Cohere's client": _outcomes(_cohere(), url),
            "huggingface_hub's InferenceClient": _outcomes(_hub(), url),
            "LiteLLM": _litellm(url),
        }
    asked = {"Cohere's client": 13, "huggingface_hub's InferenceClient": 6, "LiteLLM": 14}
    return Report(
        "Clients that people have: calls that end as they should",
        ["client", "calls", "failed"],
        [
            [name, ", ".join(found), ", ".join(each for each, ok in found.items() if not ok) or "–"]
            for name, found in families.items()
        ],
        [
            Bar(
                f"{name}: {asked[name]} of {asked[name]}",
                f"{sum(found.values())} of {len(found)}",
                len(found) >= asked[name] and all(found.values()),
            )
            for name, found in families.items()
        ],
        ["each call's answer is compared with what the model gives, not only its status"],
    )


@contextmanager
def _serving() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    text = f"[server]\nport = {port}\ngrpc_port = -1\n" + "".join(
        f'[[models]]\nname = "{name}"\ntarget = "{target}"\n' for name, target in _MODELS.items()
    )
    path = os.pathsep.join([str(_TESTS), str(_CLIENT_TESTS), str(_ROOT / "src")])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "headway.toml")
        file.write_text(text)
        with subprocess.Popen(
            [sys.executable, "-m", "headway", "serve", str(file)],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.DEVNULL,
        ) as server:
            try:
                yield _wait_ready(f"http://127.0.0.1:{port}")
            finally:
                server.send_signal(signal.SIGTERM)


def _wait_ready(url: str) -> str:
    for _ in range(600):
        try:
            if httpx.get(f"{url}/v2/health/ready").status_code == 200:
                return url
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError("the server does not get ready")


def _outcomes(calls: dict[str, Call], url: str) -> dict[str, bool]:
    found = {}
    for name, call in calls.items():
        try:
            found[name] = call(url)
        except Exception as error:  # noqa: BLE001  whatever a client raises, the call has failed
            print(f"{name}: {error!r}", file=sys.stderr)
            found[name] = False
    return found


# ---- Cohere


def _cohere() -> dict[str, Call]:
    import cohere

    def old(url: str) -> Any:
        return cohere.Client(api_key="none", base_url=url)

    def new(url: str) -> Any:
        return cohere.ClientV2(api_key="none", base_url=url)

    given: Any = {"model": "words", "texts": ["aab", "b"], "input_type": "search_query"}
    ranking: Any = {"model": "pairs", "query": "ab", "documents": DOCUMENTS}
    titled = [{"title": "xyz", "text": "abc"}, {"title": "ab", "text": "c"}]
    contents = [{"content": [{"type": "text", "text": "b"}]}]

    def embedded(client: Any, kind: str) -> Any:
        return getattr(client.embed(**given, embedding_types=[kind]).embeddings, f"{kind}")

    def floats(client: Any, **more: Any) -> Any:
        return client.embed(**{**given, **more}, embedding_types=["float"]).embeddings.float_

    async def later(url: str) -> Any:
        async with cohere.AsyncClientV2(api_key="none", base_url=url) as client:
            return _ranks(await client.rerank(**ranking))

    return {
        "v1 embed": lambda url: old(url).embed(**given).embeddings == VECTORS,
        "v1 embed float": lambda url: floats(old(url)) == VECTORS,
        "v1 embed ubinary": lambda url: embedded(old(url), "ubinary") == [[0xF0], [0xB0]],
        "v1 rerank": lambda url: _ranks(old(url).rerank(**ranking)) == RANKED,
        "v1 rerank top_n": lambda url: _ranks(old(url).rerank(**ranking, top_n=1)) == RANKED[:1],
        "v1 rerank rank_fields": lambda url: _ranks(
            old(url).rerank(model="pairs", query="abx", documents=titled, rank_fields=["title"])
        ) == [[1, 2.0], [0, 1.0]],
        "v1 rerank return_documents": lambda url: old(url)
        .rerank(**ranking, return_documents=True).results[0].document.text == "abc",
        "v2 embed": lambda url: floats(new(url)) == VECTORS,
        "v2 embed base64": lambda url: _unpacked(embedded(new(url), "base64")) == VECTORS,
        "v2 embed contents": lambda url: floats(new(url), texts=None, inputs=contents)
        == VECTORS[1:],
        "v2 embed output_dimension": lambda url: floats(new(url), output_dimension=1)
        == [[1.0], [1.0]],
        "v2 rerank": lambda url: _ranks(new(url).rerank(**ranking)) == RANKED,
        "v2 rerank async": lambda url: asyncio.run(later(url)) == RANKED,
    }  # fmt: skip


def _ranks(answer: Any) -> list[list[float]]:
    return [[each.index, each.relevance_score] for each in answer.results]


def _unpacked(texts: list[str]) -> list[Any]:
    return [numpy.frombuffer(base64.b64decode(each), "<f4").tolist() for each in texts]


# ---- Hugging Face's hub


def _hub() -> dict[str, Call]:
    import huggingface_hub

    sys.path[:0] = [str(_TESTS), str(_CLIENT_TESTS)]
    from test_other_servers_clients import PNG

    def client(url: str, model: str, **more: Any) -> Any:
        return huggingface_hub.InferenceClient(f"{url}/models/{model}", token="none", **more)

    def is_well(url: str) -> bool:
        asked = client(url, "words", provider="hf-inference")
        task = asked.get_endpoint_info()["model_pipeline_tag"]
        return bool(asked.health_check()) and task == "feature-extraction"

    return {
        "feature_extraction": lambda url: client(url, "words")
        .feature_extraction(["aab", "b"]).tolist() == VECTORS,
        "sentence_similarity": lambda url: client(url, "pairs")
        .sentence_similarity("ab", DOCUMENTS) == [1, 2, 0],
        "text_classification": lambda url: client(url, "mood")
        .text_classification("yes!")[0].label == "good",
        "image_classification": lambda url: client(url, "photos")
        .image_classification(PNG)[0].label == "PNG",
        "text_to_image": lambda url: client(url, "draws").text_to_image("a cat").size == (1, 1),
        "health_check and get_endpoint_info": is_well,
    }  # fmt: skip


# ---- LiteLLM


def _litellm(url: str) -> dict[str, bool]:
    if not Path(_CLIENTS).exists():
        print(f"LiteLLM is not counted: there is no {_CLIENTS}", file=sys.stderr)
        return {}
    done = subprocess.run(
        [_CLIENTS, str(_TESTS / "litellm_worker.py"), url], capture_output=True, check=True
    )
    found: dict[str, Any] = msgspec.json.decode(done.stdout)
    return {
        name: answer == _expected(name)
        for name, answer in found.items()
        if name.startswith(("embed", "rank"))
    }


def _expected(call: str) -> Any:
    if call.startswith("embed"):
        packed = [base64.b64encode(numpy.array(each, "<f4")).decode() for each in VECTORS]
        return packed if "base64" in call else VECTORS
    return RANKED[:1] if "top_n" in call else RANKED


BENCHMARKS: dict[str, Benchmark] = {"client-calls": client_calls}
