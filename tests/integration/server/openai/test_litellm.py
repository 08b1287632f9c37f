"""LiteLLM and LangChain, unmodified."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy
import pytest
from real_server import HERE
from served_models import MOST_S
from stacks import Stacks

from client_calls import CLIENTS_PYTHON, ended

pytestmark = pytest.mark.slow
if not CLIENTS_PYTHON.exists():
    pytest.skip("litellm is elsewhere: make .venv-clients/.ready", allow_module_level=True)

VECTORS = [[3, 2, 1, 1], [1, 0, 1, 1]]
RANKED = [[1, 2], [0, 1], [2, 0]]
PACKED = [base64.b64encode(numpy.array(each, "<f4").tobytes()).decode() for each in VECTORS]
EXPECTED: dict[str, Any] = {
    "embed openai": VECTORS,
    "embed openai float": VECTORS,
    "embed openai base64": PACKED,
    "embed hosted_vllm": VECTORS,
    "embed openai_like": VECTORS,
    "embed infinity": VECTORS,
    "embed jina_ai": VECTORS,
    "embed cohere": VECTORS,
    "embed async": VECTORS,
    "rank cohere": RANKED,
    "rank jina_ai": RANKED,
    "rank hosted_vllm": RANKED,
    "rank huggingface": RANKED,
    "rank top_n": RANKED[:1],
    "rank async": RANKED,
    "langchain": VECTORS,
}


@pytest.fixture(scope="module")
def stacks() -> Iterator[Stacks]:
    with Stacks() as served:
        yield served


@pytest.fixture(scope="module")
def found(stacks: Stacks) -> Any:
    url = f"http://{stacks.addresses.http}"
    return ended(HERE / "litellm_worker.py", url, most_s=6 * MOST_S)


@pytest.mark.parametrize("call", EXPECTED)
def test_a_call_is_answered(found: Any, call: str) -> None:
    assert found[call] == EXPECTED[call]


@pytest.mark.parametrize("stack", ["http", "asgi"])
def test_token_ids_for_a_model_of_texts_are_refused_with_the_way_out(
    stacks: Stacks, stack: str
) -> None:
    """As LangChain sends them by default."""
    body = {"model": "words", "input": [[64, 370]], "encoding_format": "base64"}
    answer = httpx.post(f"http://{stacks.addresses.of(stack)}/v1/embeddings", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "input"
    assert "check_embedding_ctx_length=False" in answer.json()["error"]["message"]
