"""LiteLLM and LangChain, unmodified, on a two-layer model."""

import importlib.util
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import MOST_S, Serving

from client_calls import CLIENTS_PYTHON, ended

pytestmark = pytest.mark.real_time
if not CLIENTS_PYTHON.exists():
    pytest.skip("litellm is elsewhere: make .venv-clients/.ready", allow_module_level=True)

FIELDS: dict[str, Any] = {"model": "tiny", "max_tokens": 12, "temperature": 0}
HAS_GRAMMARS = importlib.util.find_spec("llguidance") is not None


@pytest.fixture(scope="module")
def found(served: Serving) -> Any:
    worker = Path(__file__).with_name("chat_clients_worker.py")
    return ended(worker, served.url, most_s=6 * MOST_S)


@pytest.fixture(scope="module")
def expected(served: Serving) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello"}]
    chat = httpx.post(f"{served.url}/v1/chat/completions", json={**FIELDS, "messages": messages})
    prompt = httpx.post(f"{served.url}/v1/completions", json={**FIELDS, "prompt": "Hello"})
    text, count = chat.json()["choices"][0]["message"]["content"], chat.json()["usage"]
    return {
        "langchain batch": [text, text],
        "langchain usage": count["completion_tokens"],
        "litellm logprobs": count["completion_tokens"],
        "litellm json_schema": ["ok"],
        "langchain structured": ["ok"],
        "litellm refused": "n: ",
        "langchain prompt": prompt.json()["choices"][0]["text"],
        "": text,
    }


@pytest.mark.parametrize(
    "call",
    [
        *("litellm", "litellm hosted_vllm", "litellm stream"),
        *("litellm async", "litellm logprobs", "litellm json_schema", "litellm refused"),
        *("langchain", "langchain stream", "langchain usage", "langchain batch"),
        *("langchain structured", "langchain prompt"),
    ],
)
def test_a_chat_is_answered(found: Any, expected: dict[str, Any], call: str) -> None:
    if not HAS_GRAMMARS and call in ("litellm json_schema", "langchain structured"):
        pytest.skip("headway[llm] brings llguidance")
    assert found[call] == expected.get(call, expected[""])
