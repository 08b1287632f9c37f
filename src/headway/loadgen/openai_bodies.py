"""Bodies for OpenAI's routes: chats and completions as streams of tokens, embeddings, reranking."""

import json
from typing import Any

import numpy as np

from headway.loadgen.tensors import words

OPENAI_PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
}
_DOCUMENTS = 4  # of a request for reranking


def openai_body(
    api: str,
    model: str,
    rng: np.random.Generator,
    *,
    length: int | None,
    max_tokens: int,
    ignore_eos: bool,
) -> bytes:
    """`length`: of its texts, in words."""
    text = words(rng, length)
    body: dict[str, Any] = {"model": model}
    if api == "embeddings":
        body["input"] = text
    elif api == "rerank":
        body["query"] = words(rng, 4)
        body["documents"] = [text, *(words(rng, length) for _ in range(_DOCUMENTS - 1))]
    else:
        if api == "chat":
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        body |= {"max_tokens": max_tokens, "stream": True}
        body["stream_options"] = {"include_usage": True}
        if ignore_eos:
            body["ignore_eos"] = True
    return json.dumps(body, separators=(",", ":")).encode()


def is_stream(body: bytes) -> bool:
    told = json.loads(body)
    return isinstance(told, dict) and told.get("stream") is True
