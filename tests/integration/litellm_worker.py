"""LiteLLM's and LangChain's own calls, in an environment of their own (.venv-clients): for
`client_calls.py`."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would be fetched

import litellm
from langchain_openai import OpenAIEmbeddings

litellm.suppress_debug_info = True
litellm.num_retries = 0
DOCUMENTS = ["b", "abc", "z"]


def embed(url: str, model: str, route: str = "/v1", **more: Any) -> list[Any]:
    given = {"input": ["aab", "b"], "api_key": "none", **more}
    answer = litellm.embedding(model=f"{model}/words", api_base=url + route, **given)
    return [each["embedding"] for each in answer.data]


async def embed_async(url: str) -> list[Any]:
    answer = await litellm.aembedding(
        model="openai/words", api_base=f"{url}/v1", api_key="none", input=["aab", "b"]
    )
    return [each["embedding"] for each in answer.data]


def ranked(answer: Any) -> list[Any]:
    return [[each["index"], each["relevance_score"]] for each in answer.results]


def rank(url: str, model: str, route: str = "", **more: Any) -> list[Any]:
    given = {"query": "ab", "documents": DOCUMENTS, "api_key": "none", **more}
    return ranked(litellm.rerank(model=f"{model}/pairs", api_base=url + route, **given))


async def rank_async(url: str) -> list[Any]:
    return ranked(
        await litellm.arerank(
            model="cohere/pairs", api_base=url, api_key="none", query="ab", documents=DOCUMENTS
        )
    )


def chain(url: str, **options: Any) -> list[Any]:
    made = OpenAIEmbeddings(model="words", base_url=f"{url}/v1", api_key="none", **options)
    found: list[Any] = made.embed_documents(["aab", "b"])
    return found


CALLS: dict[str, Callable[[str], Any]] = {
    "embed openai": lambda url: embed(url, "openai"),
    "embed openai float": lambda url: embed(url, "openai", encoding_format="float", user="me"),
    "embed openai base64": lambda url: embed(url, "openai", encoding_format="base64"),
    "embed hosted_vllm": lambda url: embed(url, "hosted_vllm"),
    "embed openai_like": lambda url: embed(url, "openai_like"),
    "embed infinity": lambda url: embed(url, "infinity"),
    "embed jina_ai": lambda url: embed(url, "jina_ai"),
    "embed cohere": lambda url: embed(url, "cohere", "/v2/embed"),
    "embed async": lambda url: asyncio.run(embed_async(url)),
    "rank cohere": lambda url: rank(url, "cohere"),
    "rank jina_ai": lambda url: rank(url, "jina_ai", "/v1/rerank"),
    "rank hosted_vllm": lambda url: rank(url, "hosted_vllm"),
    "rank huggingface": lambda url: rank(url, "huggingface", "/models/pairs"),
    "rank top_n": lambda url: rank(url, "cohere", top_n=1, return_documents=True),
    "rank async": lambda url: asyncio.run(rank_async(url)),
    "langchain": lambda url: chain(url, check_embedding_ctx_length=False),
}
