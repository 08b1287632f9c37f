"""Text to tokens and back: the tokenizer, the chat template, and words that end an answer."""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.errors import ConfigError, InvalidInput
from headway.models.chat.templates import ChatTemplate

Message = Mapping[str, Any]
_DEFAULTS = frozenset(["temperature", "top_p", "top_k", "min_p", "repetition_penalty"])
_NO_CHARACTER = "\ufffd"  # for bytes that are none, or not yet
_NOTHING: dict[int, str] = {}


class ChatText:
    """What of a model's folder concerns text. Needs neither torch nor transformers."""

    def __init__(self, folder: Path) -> None:
        try:
            from tokenizers import Tokenizer
            from tokenizers.decoders import ByteLevel
        except ImportError as error:
            raise ConfigError("language models need pip install 'headway[llm]'") from error
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ConfigError(f"{folder}: holds no tokenizer.json")
        self.tokenizer = Tokenizer.from_file(str(file))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self._plain: Any = None  # the same, to which special tokens are text
        # Of tokens that are whole characters. None: a token's text depends on those before it.
        self.pieces: dict[int, str] | None = None
        if isinstance(self.tokenizer.decoder, ByteLevel):
            self.pieces = {}
        self._config = _read(folder / "tokenizer_config.json")
        self._template = _template(folder, self._config)
        self._special = re.compile(
            "|".join(
                re.escape(token.content)
                for token in self.tokenizer.get_added_tokens_decoder().values()
                if token.special
            )
            or r"(?!)"
        )
        defaults = {**_read(folder / "config.json"), **_read(folder / "generation_config.json")}
        ends = defaults.get("eos_token_id")
        spelled = self.tokenizer.token_to_id(_token(self._config.get("eos_token")))
        ids = {*(ends if isinstance(ends, list) else [ends]), spelled}
        self.stop_ids = frozenset(ids - {None})
        # What the model's makers recommend for requests that set nothing else.
        self.defaults = {
            name: value
            for name, value in _read(folder / "generation_config.json").items()
            if name in _DEFAULTS and isinstance(value, int | float)
        }

    def encode(self, text: str) -> list[int]:
        """A text as it is: no template; special tokens in it count as such."""
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Messages through the template. Special tokens in their text stay text. The generation
        prompt is what the model goes on from: the head of its own message."""
        if self._template is None:
            raise InvalidInput("messages: the model has no chat template; send a text")
        nonce = secrets.token_hex(8)
        spelled: list[str] = []

        def shield(found: re.Match[str]) -> str:
            spelled.append(found[0])
            return f"{nonce}{len(spelled) - 1}{nonce}"

        shielded = [_checked(each, lambda it: self._special.sub(shield, it)) for each in messages]
        if not shielded:
            raise InvalidInput("messages: the list is empty")
        rendered = self._render(shielded, add_generation_prompt)
        parts = re.split(f"{nonce}(\\d+){nonce}", rendered)
        ids: list[int] = []
        for index, part in enumerate(parts):
            if index % 2:
                ids += self._encode_plain(spelled[int(part)])
            elif part:
                ids += self.tokenizer.encode(part, add_special_tokens=False).ids
        return ids

    def _encode_plain(self, text: str) -> list[int]:
        if self._plain is None:
            self._plain = type(self.tokenizer).from_str(self.tokenizer.to_str())
            self._plain.encode_special_tokens = True
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        assert self._template is not None
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        special = {name: _token(self._config.get(name)) for name in names}
        return self._template.render(
            messages, add_generation_prompt=add_generation_prompt, **special
        )


class Detokenizer:
    """One answer's text, as its tokens come. Never half a character, never past a stop string."""

    def __init__(self, text: ChatText, stops: Sequence[str] = ()) -> None:
        self._tokenizer = text.tokenizer
        self._pieces = text.pieces
        self._stream: Any = None  # while a character is not whole
        self._stops = StopStrings(stops) if stops else None
        # Texts of tokens for which `step` would do no more than look here.
        self.known = _NOTHING if stops or text.pieces is None else text.pieces
        self.is_stopped = False  # by a stop string

    def step(self, token: int) -> str:
        """The text that can be shown now."""
        text = self.known.get(token)
        if text is None:
            text = self._decode(token)
        return text if self._stops is None else self._cut(text, self._stops)

    def _cut(self, text: str, stops: "StopStrings") -> str:
        shown = stops.step(text)
        self.is_stopped = stops.is_found
        return shown

    def _decode(self, token: int) -> str:
        """Of a token that is new, or no text by itself."""
        pieces = self._pieces
        if pieces is not None and self._stream is None:
            piece = pieces.get(token)
            if piece is not None:
                return piece
            piece = str(self._tokenizer.decode([token], skip_special_tokens=True))
            if _NO_CHARACTER not in piece:
                pieces[token] = piece
                return piece
        if self._stream is None:
            from tokenizers.decoders import DecodeStream

            self._stream, self.known = DecodeStream(skip_special_tokens=True), _NOTHING
        text: str = self._stream.step(self._tokenizer, token) or ""
        if text and pieces is not None:  # whole again
            self._stream, self.known = None, pieces if self._stops is None else _NOTHING
        return text

    def finish(self) -> str:
        """What was held back, in case it became a stop string."""
        return "" if self._stops is None else self._stops.finish()


class StopStrings:
    """Cuts a text that comes in pieces before the first stop string, wherever the pieces part."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max((len(each) for each in stops), default=0)
        self._begins = frozenset(each[0] for each in stops)
        self._held = ""
        self.is_found = False

    def step(self, piece: str) -> str:
        if self.is_found:
            return ""
        if not self._held and self._begins.isdisjoint(piece):  # the common case
            return piece
        text = self._held + piece
        found = [place for place in (text.find(each) for each in self._stops) if place >= 0]
        if found:
            self.is_found = True
            self._held = ""
            return text[: min(found)]
        keep = self._beginning(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held

    def _beginning(self, text: str) -> int:
        """How much of the end of the text may be the beginning of a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(each.startswith(tail) for each in self._stops):
                return length
        return 0


def _template(folder: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
    source = config.get("chat_template")
    file = folder / "chat_template.jinja"
    if file.is_file():
        source = file.read_text()
    if not isinstance(source, str):
        return None
    return ChatTemplate(source, where=str(folder))


def _checked(message: Message, shield: Any) -> dict[str, Any]:
    """A message with its text as one string."""
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
    return {**message, "role": shield(message["role"]), "content": shield(content or "")}


def _token(value: Any) -> str:
    return value.get("content", "") if isinstance(value, Mapping) else value or ""


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return found if isinstance(found, dict) else {}
