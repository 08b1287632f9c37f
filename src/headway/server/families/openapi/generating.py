"""OpenAI's and vLLM's routes for language models, described."""

from collections.abc import Sequence
from typing import Any

from headway.hosting.registry import ServedModel
from headway.server.families.openapi.parts import RUNNING, Operation, body_of, json_of, operation_of
from headway.server.service.schemas import Schema, ref

_TEXT: Schema = {"type": "string"}


def generating(
    served: Sequence[ServedModel], urgency: list[Any]
) -> dict[str, dict[str, Operation]]:
    names = [each.name for each in served if each.language is not None]
    model = next(iter(names), "name of a model")
    messages = [{"role": "user", "content": "hello"}]

    def post(tag: str, name: str, summary: str, kind: str, answer: Any, **example: Any) -> Any:
        body = body_of(ref(kind), example={"model": model, **example})
        made = operation_of(tag, name, summary, answer, RUNNING, parameters=urgency, body=body)
        return {"post": made}

    return {
        "/v1/chat/completions": post(
            *("openai", "chat", "An answer to a chat's messages", "ChatRequest"),
            _whole("ChatCompletion"),
            messages=messages,
            max_completion_tokens=64,
        ),
        "/v1/completions": post(
            *("openai", "complete", "Continuations of prompts", "CompletionRequest"),
            _whole("Completion"),
            prompt="Once upon a time",
        ),
        "/tokenize": post(
            *("plain", "tokenize", "The tokens of a prompt or of messages", "TokenizeRequest"),
            json_of("their ids", ref("Tokenized")),
            prompt="hello",
        ),
        "/detokenize": post(
            *("plain", "detokenize", "The text of tokens", "DetokenizeRequest"),
            json_of("it", ref("Detokenized")),
            tokens=[1],
        ),
        **_adapters(),
    }


def _whole(kind: str) -> dict[str, Any]:
    answer = json_of("the whole answer; with `stream`, as events", ref(kind))
    answer["content"]["text/event-stream"] = {}
    return answer


def _adapters() -> dict[str, dict[str, Operation]]:
    """vLLM's routes that load and unload them."""
    done = {"description": "done", "content": {"text/plain": {"schema": _TEXT}}}
    fails = ("400", "403", "404", "413", "503")

    def post(name: str, summary: str, kind: str, **example: Any) -> dict[str, Operation]:
        body = body_of(ref(kind), example=example)
        return {"post": operation_of("openai", name, summary, done, fails, body=body)}

    return {
        "/v1/load_lora_adapter": post(
            *("load_lora_adapter", "Load a LoRA adapter, a folder of PEFT's", "LoadLoraRequest"),
            lora_name="pirate",
            lora_path="adapters/pirate",
        ),
        "/v1/unload_lora_adapter": post(
            *("unload_lora_adapter", "Unload it; answers under way go on", "UnloadLoraRequest"),
            lora_name="pirate",
        ),
    }
