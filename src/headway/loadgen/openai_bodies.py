"""Bodies for OpenAI's routes: chats, completions and responses as streams of tokens, embeddings,
reranking, clips to transcribe."""

import io
import json
import wave
from typing import Any

import numpy as np

from headway.loadgen.tensors import words

OPENAI_PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
    "responses": "/v1/responses",
    "transcriptions": "/v1/audio/transcriptions",
}
GENERATING = ("chat", "completions", "responses")
_BOUNDARY = "headway-bench-0f9b6c1e5d"
FORM = f"multipart/form-data; boundary={_BOUNDARY}"
_CLIP_S, _HZ = 5, 16_000
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
    """`length`: of its texts, in words; of a clip, in seconds."""
    if api == "transcriptions":
        return _clip(rng, length)
    text = words(rng, length)
    body: dict[str, Any] = {"model": model}
    if api == "embeddings":
        body["input"] = text
    elif api == "rerank":
        body["query"] = words(rng, 4)
        body["documents"] = [text, *(words(rng, length) for _ in range(_DOCUMENTS - 1))]
    elif api == "responses":
        body |= {"input": text, "max_output_tokens": max_tokens, "stream": True}
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


def _clip(rng: np.random.Generator, seconds: int | None) -> bytes:
    """A WAV file of noise."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, _HZ, 0, "NONE", ""))
        out.writeframes(
            (rng.standard_normal(_HZ * (seconds or _CLIP_S)) * 2000).astype("<i2").tobytes()
        )
    return file.getvalue()


def audio_form(model: str, audio: bytes) -> bytes:
    """What /v1/audio/transcriptions takes."""
    head = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n'
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="clip.wav"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    return head.encode() + audio + f"\r\n--{_BOUNDARY}--\r\n".encode()


def is_stream(body: bytes) -> bool:
    told = json.loads(body)
    return isinstance(told, dict) and told.get("stream") is True
