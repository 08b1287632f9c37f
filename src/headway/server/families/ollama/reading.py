"""Requests in Ollama's dialect, as a chat: one field of theirs for one of ours."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from headway.errors import InvalidInput
from headway.server.bodies.json_body import CHAT_VALUES
from headway.server.bodies.neutral import Neutral, check_count, is_neutral
from headway.server.families.openai.chat import ChatRequest
from headway.server.families.openai.chat_messages import call_arguments

_SAMPLING = {  # of `options`, and a chat's names for them
    "frequency_penalty": "frequency_penalty",
    "min_p": "min_p",
    "num_predict": "max_tokens",
    "presence_penalty": "presence_penalty",
    "repeat_penalty": "repetition_penalty",
    "seed": "seed",
    "stop": "stop",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
}
FIELDS = {
    "response_format": "format",
    **{ours: f"options.{theirs}" for theirs, ours in _SAMPLING.items()},
}
_ROLES = ("system", "user", "assistant", "tool")
_FIELDS_OF = {
    "assistant": ("role", "content", "thinking", "tool_calls"),
    "tool": ("role", "content", "tool_name", "tool_call_id"),
}
_MESSAGE: Neutral = {"images": ([],), "tool_calls": ([],), "thinking": ("",)}
NO_IMAGES = "no model here reads images with a text"

_Server: TypeAlias = int | bool | None  # how a model is loaded: the server's choice, not a caller's


class OllamaOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of the others only the values are taken that change no answer here."""

    frequency_penalty: float | None = None
    min_p: float | None = None
    num_predict: int | None = None  # -1 and -2: as many as fit
    presence_penalty: float | None = None
    repeat_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None

    f16_kv: _Server = None
    low_vram: _Server = None
    main_gpu: _Server = None
    num_batch: _Server = None
    num_ctx: _Server = None
    num_gpu: _Server = None
    num_keep: _Server = None
    num_thread: _Server = None
    numa: _Server = None
    use_mlock: _Server = None
    use_mmap: _Server = None

    mirostat: Literal[0] | None = None
    penalize_newline: bool | None = None
    repeat_last_n: Literal[-1] | None = None  # the penalty looks at all of the text
    tfs_z: Annotated[float, Meta(ge=1, le=1)] | None = None
    typical_p: Annotated[float, Meta(ge=1, le=1)] | None = None


class OllamaRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`keep_alive` changes no answer: `unload_after_s` of the model decides."""

    NEUTRAL: ClassVar[Neutral] = {
        "images": ([],),
        "logprobs": (False,),
        "shift": (False, True),
        "top_logprobs": (0,),
        "truncate": (False,),
        **dict.fromkeys(("context",), ([],)),
        **dict.fromkeys(("suffix", "template"), ("",)),
    }
    MOST_VALUES: ClassVar[int] = CHAT_VALUES
    UNSUPPORTED: ClassVar[Mapping[str, str]] = {
        "context": "send the messages again to /api/chat",
        "images": NO_IMAGES,
        "raw": "/v1/completions continues a text as it is",
        "template": "the model's own is used",
        "truncate": "a prompt that is too long is refused",
    }

    model: str
    stream: bool = True
    format: str | dict[str, Any] | None = None  # "json", or a schema
    options: OllamaOptions | None = None
    keep_alive: float | str | None = None
    think: bool | Literal["low", "medium", "high"] | None = None

    @property
    def unloads(self) -> bool:
        return self.keep_alive in (0, "0", "0s")


class OllamaChatRequest(OllamaRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    messages: list[dict[str, Any]] | None = None  # none: the model is loaded, no more
    tools: list[dict[str, Any]] | None = None


class GenerateTextRequest(OllamaRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    NEUTRAL: ClassVar[Neutral] = {**OllamaRequest.NEUTRAL, "raw": (False,)}

    prompt: str = ""  # none: the model is loaded, no more
    system: str | None = None


def messages_of(asked: OllamaChatRequest) -> list[dict[str, Any]]:
    """Raises InvalidInput, which names the place. Ollama's calls have no ids: they are counted,
    and results come in the order of their calls."""
    given = asked.messages or []
    check_count(given)
    found: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []  # the names and ids of calls without a result
    count = 0
    for index, each in enumerate(given):
        message = _message(each, f"messages[{index}]")
        for call in message.get("tool_calls", ()):
            call["id"] = f"call{count:05d}"  # nine letters, as some templates want
            count += 1
            waiting.append((call["function"]["name"], call["id"]))
        if message["role"] == "tool":
            message["tool_call_id"] = _answered(waiting, message.pop("tool_name", None))
        found.append(message)
    return found


def _answered(waiting: list[tuple[str, str]], name: str | None) -> str:
    """The id of the first call that waits for a result of this function."""
    place = next((i for i, call in enumerate(waiting) if name in (None, call[0])), None)
    return "call00000" if place is None else waiting.pop(place)[1]


def prompt_of(asked: GenerateTextRequest) -> list[dict[str, Any]]:
    if not asked.prompt:
        return []
    system = [{"role": "system", "content": asked.system}] if asked.system else []
    return [*system, {"role": "user", "content": asked.prompt}]


def chat_of(asked: OllamaRequest, messages: list[dict[str, Any]]) -> ChatRequest:
    effort = asked.think if isinstance(asked.think, str) else None
    thinks = None if asked.think is None else {"enable_thinking": asked.think is not False}
    return ChatRequest(
        model=asked.model,
        messages=messages,
        tools=getattr(asked, "tools", None) or None,
        chat_template_kwargs=thinks,
        reasoning_effort=effort,
        stream=asked.stream,
        response_format=_format(asked.format),
        **_sampling(asked.options or OllamaOptions()),
    )


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role not in _ROLES:
        raise InvalidInput(f"{where}.role: {role!r:.40} is unknown; there are {', '.join(_ROLES)}")
    fields = _FIELDS_OF.get(role, ("role", "content"))
    for name, value in message.items():
        if name not in fields and not is_neutral(name, value, _MESSAGE):
            why = f"; {NO_IMAGES}" if name == "images" else ""
            raise InvalidInput(f"{where}.{name}: this field is not supported{why}")
    checked: dict[str, Any] = {"role": role, "content": _text(message, "content", where) or ""}
    if role == "assistant" and (thought := _text(message, "thinking", where)):
        checked["reasoning_content"] = thought
    if role == "tool":
        checked["tool_name"] = _text(message, "tool_name", where)
    calls = _calls(message.get("tool_calls") or [], f"{where}.tool_calls")
    return {**checked, "tool_calls": calls} if calls else checked


def _text(message: Mapping[str, Any], field: str, where: str) -> str | None:
    value = message.get(field)
    if not isinstance(value, str | None):
        raise InvalidInput(f"{where}.{field}: a text is expected")
    return value


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise InvalidInput(f"{where}: a list of calls is expected")
    return [_call(each, f"{where}[{index}]") for index, each in enumerate(calls)]


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidInput(f"{where}.function.name: a text is expected")
    arguments = call_arguments(function.get("arguments"), f"{where}.function.arguments")
    made = {"name": function["name"], "arguments": arguments}
    return {"type": "function", "function": made}


def _format(given: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if not given:
        return None
    if given == "json":
        return {"type": "json_object"}
    if not isinstance(given, dict):
        raise InvalidInput(f"format: json or a schema is expected, not {given!r:.40}")
    return {"type": "json_schema", "json_schema": {"schema": given}}


def _sampling(options: OllamaOptions) -> dict[str, Any]:
    if options.penalize_newline is False:
        raise InvalidInput("options.penalize_newline: only true is supported")
    given = {ours: getattr(options, theirs) for theirs, ours in _SAMPLING.items()}
    if given["max_tokens"] is not None and given["max_tokens"] < 0:
        given["max_tokens"] = None
    given["stop"] = given["stop"] or None
    return given
