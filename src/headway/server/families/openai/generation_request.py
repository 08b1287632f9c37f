"""Request fields shared by chat and completions, with their validation."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from headway.core.generation.options import GenerationOptions, generation_options
from headway.core.generation.sampling import MOST_LOGPROBS
from headway.errors import ContextLengthExceeded, InputTooLarge, InvalidInput
from headway.hosting.generation.language import Language
from headway.hosting.registry import ServedModel
from headway.server.bodies.neutral import Neutral
from headway.server.families.openai.response_format import AnswerFormat, format_of, guided

MOST_CHOICES = 128  # answers to one request
_NOT_SAMPLING = frozenset(
    [
        *("model", "n", "logprobs", "max_completion_tokens", "response_format"),
        *("stream", "stream_options", "structured_outputs"),
        *("guided_json", "guided_regex", "guided_choice", "prompt_logprobs"),
    ]
)

_GUIDED = ("guided_json", "guided_regex", "guided_choice")
_STRUCTURED = "structured_outputs takes json, regex or choice"
# Fields that OpenAI or vLLM knows and that are not served here, with what to use instead.
_UNSUPPORTED = {
    "guided_grammar": _STRUCTURED,
    **dict.fromkeys(("truncate_prompt_tokens", "request_id"), ""),
    "priority": "the header Headway-Priority takes high, normal or low",
}

# Fields that clients of OpenAI's routes send out of habit, with the values that change nothing.
GENERATING: Neutral = {
    # For the operator of OpenAI's server: they change nothing in the answer.
    **dict.fromkeys(("prompt_cache_key", "safety_identifier", "user"), str),
    "metadata": dict,
    "prompt_cache_retention": ("in_memory", "in-memory", "24h"),
    "service_tier": ("auto", "default"),
    "store": (False,),
    # vLLM's, at its defaults.
    **dict.fromkeys(("allowed_token_ids", "bad_words"), ([],)),
    **dict.fromkeys(
        ("include_stop_str_in_output", "return_token_ids", "return_tokens_as_token_ids"), (False,)
    ),
    **dict.fromkeys(
        ("include_reasoning", "skip_special_tokens", "spaces_between_special_tokens"), (True,)
    ),
    **dict.fromkeys(("mm_processor_kwargs", "vllm_xargs"), ({},)),
    "guided_decoding_backend": str,  # ours has its own
    "length_penalty": (1, 1.0),
    "priority": (0,),
    "use_beam_search": (False,),
}
CHAT: Neutral = {
    **GENERATING,
    "add_generation_prompt": (True,),
    **dict.fromkeys(("continue_final_message", "echo"), (False,)),
    "documents": ([],),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    # The older names of `tools` and `tool_choice`.
    "functions": ([],),
    "function_call": ("none", "auto"),
}
COMPLETION: Neutral = {**GENERATING, "suffix": ("",)}
# `cache_control` is Anthropic's: prefixes are shared without it. The others are parts of an answer
# that clients send back.
MESSAGE: Neutral = {
    **dict.fromkeys(("annotations", "tool_calls"), ([],)),
    "cache_control": dict,
    "reasoning_content": ("",),
}
PART: Neutral = {"annotations": ([],), "cache_control": dict}


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # we never pad events; asking for none is fine
    continuous_usage_stats: bool | None = None  # vLLM's: usage with every event


class GenerationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request whose fields all have an effect; NEUTRAL lists others, with values that have
    none."""

    UNSUPPORTED: ClassVar[Mapping[str, str]] = _UNSUPPORTED
    NEUTRAL: ClassVar[Neutral] = GENERATING

    model: str | None = None  # absent: the only one that generates
    temperature: float | None = None
    top_p: float | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] = 1
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None  # vLLM's: json, regex or choice
    stream: bool = False
    stream_options: StreamOptions | None = None
    # Older names of vLLM's for structured_outputs.
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    # Not OpenAI's, but vLLM's: by `extra_body`.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None
    # vLLM's: how likely each token of the prompt is, with that many others; of whole answers.
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] | None = None

    def form(self) -> AnswerFormat | None:
        """The form that the answer must have. Raises InvalidInput."""
        form = self._form()
        if form is not None and self.ignore_eos:
            raise InvalidInput(f"{form.field}: cannot be combined with ignore_eos")
        return form

    def _form(self) -> AnswerFormat | None:
        forms = (*("response_format", "structured_outputs"), *_GUIDED)
        given = [name for name in forms if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidInput(f"{given[1]}: cannot be combined with {given[0]}")
        if given and given[0] in _GUIDED:
            return guided(given[0], getattr(self, given[0]))
        return format_of(self.response_format, self.structured_outputs)

    def sampling(
        self,
        language: Language,
        *,
        logprobs: int | None,
        grammar: str = "",
        scores_prompt: bool = False,
    ) -> GenerationOptions:
        """Raises InvalidInput, which begins with the field."""
        if self.prompt_logprobs is not None:
            logprobs = max(logprobs or 0, self.prompt_logprobs)
            scores_prompt = True
        self.check_stream()
        given = {
            name: value
            for name in GenerationRequest.__struct_fields__
            if name not in _NOT_SAMPLING and (value := getattr(self, name)) is not None
        }
        if "logit_bias" in given:
            given["logit_bias"] = _biases(given["logit_bias"])
        if "top_k" in given:
            given["top_k"] = max(0, given["top_k"])  # vLLM's word for all is -1
        if logprobs is not None:
            given["logprobs"] = logprobs
        sampling = generation_options(
            {**language.defaults, **given}, grammar=grammar, scores_prompt=scores_prompt
        )
        language.check_named(sampling)
        return sampling

    def check_stream(self) -> None:
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidInput("prompt_logprobs: cannot be combined with stream")
        if self.stream_options is not None and not self.stream:
            raise InvalidInput("stream_options: needs stream = true")
        if self.stream_options is not None and self.stream_options.include_obfuscation:
            raise InvalidInput("stream_options.include_obfuscation: this field is not supported")

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def counts_always(self) -> bool:
        """Whether every event says how many tokens there are by then."""
        options = self.stream_options
        return (
            self.includes_usage and options is not None and options.continuous_usage_stats is True
        )


def _biases(given: dict[str, float]) -> dict[int, float]:
    try:
        return {int(token): bias for token, bias in given.items()}
    except ValueError:
        raise InvalidInput("logit_bias: keys must be token ids") from None


def language_of(served: ServedModel) -> Language:
    language = served.language
    if language is None:
        raise InvalidInput(
            f"model: {served.name!r} does not generate text; POST /v1/predict/{served.name} runs it"
        )
    return language


def check_room(language: Language, prompt: int, sampling: GenerationOptions, field: str) -> None:
    """Refuse a prompt and answer that exceed the context; names both numbers, in OpenAI's words.
    Raises ContextLengthExceeded."""
    most = language.max_context
    if prompt + (sampling.max_tokens or 1) <= most:
        return
    wanted = "" if sampling.max_tokens is None else f" and {sampling.max_tokens} for the answer"
    raise ContextLengthExceeded(
        f"{'max_tokens' if prompt < most else field}: this model's maximum context length is "
        f"{most} tokens; you asked for {prompt + (sampling.max_tokens or 1)} "
        f"({prompt} in the {field}{wanted or ', and one for the answer'})"
    )


def too_long(error: InputTooLarge) -> ContextLengthExceeded:
    return ContextLengthExceeded(str(error))
