"""Text to tokens and back: the tokenizer, the chat template, and words that end an answer."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headway.errors import ConfigError, InvalidInput
from headway.files import read_optional_json
from headway.models.chat.chats import ChatPrompt, Message
from headway.models.chat.conventions import (
    EXAMPLE,
    EXAMPLE_TOOL,
    GENERIC,
    find_convention,
    find_thinking,
    finder,
)
from headway.models.chat.spelling import Spelling
from headway.models.chat.templates import ChatTemplate, find_template
from headway.models.chat.tokenizer import ChatTokenizer
from headway.models.chat.tool_messages import as_plain
from headway.models.chat.traced import of_caller, of_template

_DEFAULTS = frozenset(["temperature", "top_p", "top_k", "min_p", "repetition_penalty"])
_REASONING = ("reasoning_content", "thinking", "reasoning")
_ROLES = frozenset(
    ["system", "developer", "user", "assistant", "tool", "function", "ipython", "model", "human"]
)
_OURS = frozenset(
    ["messages", "tools", "xml_tools", "documents", "add_generation_prompt", "chat_template"]
)
# Of models that think; others answer as they would without.
_WITHOUT_EFFECT = frozenset(["enable_thinking", "reasoning_effort", "thinking"])
_LONGEST_MARKER = 64  # characters
_LATE: Sequence[Message] = [
    {"role": role, "content": f"({index})"}
    for index, role in enumerate(("system", "user", "system", "assistant", "user"))
]
_NOTHING: Mapping[int, str] = {}


class ChatText:
    """The part of a model's folder that concerns text. Needs neither torch nor transformers."""

    def __init__(self, folder: Path) -> None:
        self._chat = ChatTokenizer(folder)
        self.tokenizer = self._chat.plain
        self.spelling = Spelling(self.tokenizer)
        self._template, self._tool_template = find_template(folder, self._chat.config)
        self._find_forms(folder)
        model = read_optional_json(folder / "config.json")
        generation = read_optional_json(folder / "generation_config.json")
        self.stop_ids = frozenset(_end_ids(model, generation, folder))
        spelled = self._chat.id_of(self._chat.named.get("eos_token", ""))
        if spelled is not None:
            self.stop_ids |= {spelled}
        # What the model's makers recommend for requests that set nothing else.
        self.defaults = {
            name: value
            for name, value in generation.items()
            if name in _DEFAULTS and isinstance(value, int | float)
        }

    @property
    def takes_chats(self) -> bool:
        """Whether there is a chat template; without one it only continues texts."""
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """A text as it is: no template; special tokens in it count as such."""
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Messages through the template."""
        return self.render(ChatPrompt(messages, add_generation_prompt=add_generation_prompt)).ids

    def render(
        self, chat: ChatPrompt, *, check: Callable[[str], None] = lambda text: None
    ) -> "RenderedChat":
        """A chat through the template. Special tokens in its texts stay text. The generation
        prompt is what the model goes on from: the head of its own message. `check` is called with
        the text before it becomes tokens."""
        try:
            return self._rendered(chat, check)
        except RecursionError:
            raise InvalidInput("messages: the chat is nested too deep") from None

    def _rendered(self, chat: ChatPrompt, check: Callable[[str], None]) -> "RenderedChat":
        template = self._template if chat.tools is None else self._tool_template
        if template is None:
            raise InvalidInput("messages: the model has no chat template; send a text")
        if not chat.messages:
            raise InvalidInput("messages: the list is empty")
        messages = chat.messages
        tools = () if chat.tools is None else chat.tools.tools
        shown = None
        if self.convention.name == GENERIC.name:
            messages = as_plain(messages, tools)
        elif tools:
            shown = of_caller([each.as_json() for each in tools])
        checked = [_checked(each) for each in messages]
        rendered = template.render(
            checked if self._takes_late_system else _with_early_system(checked),
            add_generation_prompt=chat.add_generation_prompt,
            **self._variables(chat, template),
            **self._names(shown),
        )
        check(rendered)
        thinking = self.thinking
        tail = str.__str__(rendered).rstrip()[-_LONGEST_MARKER:]
        return RenderedChat(
            self._chat.encode_chat(rendered),
            is_thinking=thinking is not None and tail.endswith(thinking.opens.text),
            has_thought=thinking is not None and tail.endswith(thinking.closes.text),
        )

    def _names(self, tools: Any) -> dict[str, Any]:
        tokens = {name: of_template(token) for name, token in self._chat.named.items()}
        return {"tools": tools, "xml_tools": tools, "documents": None, **tokens}

    def _variables(self, chat: ChatPrompt, template: ChatTemplate) -> dict[str, Any]:
        for name in chat.variables:
            if name in _OURS or name in self._chat.named:
                raise InvalidInput(f"chat_template_kwargs.{name}: is set by the server")
            if name not in template.variables and name not in _WITHOUT_EFFECT:
                raise InvalidInput(
                    f"chat_template_kwargs.{name}: the model's chat template has no use for it"
                )
        return {name: of_caller(value) for name, value in chat.variables.items()}

    def _find_forms(self, folder: Path) -> None:
        """How this model writes calls and thoughts."""
        find = finder(self.spelling.added)
        source = "" if self._tool_template is None else self._tool_template.source
        if "<|channel|>" in source and "<|message|>" in source:
            raise ConfigError(
                f"{folder}: answers in Harmony's channels (gpt-oss) are not supported"
            )
        self.convention = find_convention(self._with_call(), find)
        self.thinking = find_thinking(source, find)
        shown = self._shown(_LATE)
        self._takes_late_system = all(each["content"] in shown for each in _LATE)

    def _with_call(self) -> str:
        """What the template makes of a call; empty: it shows no tools."""
        template = self._tool_template
        if template is None or template.variables.isdisjoint(("tools", "xml_tools")):
            return ""
        counts = range(2, len(EXAMPLE) + 1)  # some want a result after the call, or more
        return next(filter(None, (self._shown(EXAMPLE[:count]) for count in counts)), "")

    def _shown(self, messages: Sequence[Message]) -> str:
        """What the template makes of messages; empty: it refuses them."""
        template = self._tool_template
        names = self._names(of_caller([EXAMPLE_TOOL.as_json()]))
        try:
            made = template and template.render(
                [_checked(each) for each in messages], add_generation_prompt=False, **names
            )
        except InvalidInput:
            return ""
        return str.__str__(made or "")


class RenderedChat(NamedTuple):
    ids: list[int]
    is_thinking: bool  # it ends within the model's thoughts
    has_thought: bool  # it ends after them


class Detokenizer:
    """The text of one answer as its tokens come: never half a character, never past a stop
    string."""

    def __init__(
        self, text: ChatText, stops: Sequence[str] = (), shown: Mapping[int, str] = _NOTHING
    ) -> None:
        """`shown`: texts of tokens that otherwise have none."""
        self._pieces = text.spelling.new()
        self._shown = shown
        self._stops = StopStrings(stops) if stops else None
        # Texts of tokens for which `step` would do no more than look here.
        self.known = _NOTHING if stops else self._pieces.known
        self.stopped_by: str | None = None  # a stop string

    @property
    def is_stopped(self) -> bool:
        return self.stopped_by is not None

    def step(self, token: int) -> str:
        """The text that can be shown now."""
        text = self._shown[token] if token in self._shown else self._pieces.step(token)
        if self._stops is not None:
            return self._cut(text, self._stops)
        self.known = self._pieces.known
        return text

    def finish(self) -> str:
        """The text that was held back because it might become a stop string or a whole
        character."""
        rest = self._pieces.finish()
        if self._stops is None:
            return rest
        return self._cut(rest, self._stops) + self._stops.finish()

    def _cut(self, text: str, stops: "StopStrings") -> str:
        shown = stops.step(text)
        self.stopped_by = stops.found
        return shown


class StopStrings:
    """Cuts a text that comes in pieces before the first stop string, wherever the pieces part."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max((len(each) for each in stops), default=0)
        self._begins = frozenset(each[0] for each in stops)
        self._held = ""
        self.found: str | None = None

    def step(self, piece: str) -> str:
        if self.found is not None:
            return ""
        if not self._held and self._begins.isdisjoint(piece):  # the common case
            return piece
        text = self._held + piece
        found = [(place, each) for each in self._stops if (place := text.find(each)) >= 0]
        if found:
            place, self.found = min(found)
            self._held = ""
            return text[:place]
        keep = self._beginning(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held

    def _beginning(self, text: str) -> int:
        """The length of the text's end that may be the beginning of a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(each.startswith(tail) for each in self._stops):
                return length
        return 0


def _with_early_system(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without system messages after the first message: their words become part of the message
    before them, or of a user's."""
    made: list[dict[str, Any]] = []
    was_late = False  # what is last ends with such words
    for message in messages:
        is_late = bool(made) and message["role"] == "system"
        joins = is_late or (was_late and message["role"] == "user")
        if joins and made[-1]["role"] in ("user", "system"):
            words = of_caller(f"{made[-1].get('content', '')}\n\n{message.get('content', '')}")
            made[-1] = {**made[-1], "content": words}
        else:
            made.append({**message, "role": of_template("user")} if is_late else message)
        was_late = is_late and made[-1]["role"] == "user"
    return made


def _checked(message: Message) -> dict[str, Any]:
    """A message as transformers has it: without fields that are null, its text as one string, and
    its reasoning under each of the names that templates read."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidInput("messages: each is an object with a role and a content")
    content = message.get("content")
    if isinstance(content, list | tuple):
        texts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        if not all(isinstance(each, str) for each in texts):
            raise InvalidInput("messages: parts other than text are not supported")
        content = "".join(map(str, texts))
    if content is not None and not isinstance(content, str):
        raise InvalidInput("messages: a content is a text, a list of parts, or null")
    given = {**message, "content": content}
    fields = of_caller({name: value for name, value in given.items() if value is not None})
    reasoning = next((fields[name] for name in _REASONING if name in fields), None)
    if reasoning is not None:
        fields = {"thinking": reasoning, **fields, "reasoning_content": reasoning}
    if message["role"] in _ROLES:  # a name that templates know: part of the form, not of the text
        fields["role"] = of_template(message["role"])
    return dict(fields)


def _end_ids(
    model: Mapping[str, Any], generation: Mapping[str, Any], folder: Path
) -> Iterable[int]:
    """The end tokens in generation_config.json, else in config.json, else in the text part of
    that."""
    nested = model.get("text_config")
    places = (generation, model, nested if isinstance(nested, Mapping) else {})
    ends: Any = next(
        (each["eos_token_id"] for each in places if each.get("eos_token_id") is not None), []
    )
    ids = ends if isinstance(ends, list) else [ends]
    if not all(type(each) is int for each in ids):
        raise ConfigError(f"{folder}: eos_token_id is a number or a list of numbers, not {ends!r}")
    return ids
