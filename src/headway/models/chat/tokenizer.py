"""A model's tokenizer, as its folder describes it: `tokenizer.json`, and what
`tokenizer_config.json` says beside it.

It encodes rendered chats so that a caller's text never becomes a control token.
"""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headway.errors import ConfigError, InvalidInput
from headway.files import read_optional_json
from headway.models.chat.traced import CALLER, UNTRACED, Traced
from headway.models.sources.installed import read_tokenizer

_NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_SHORT = 2000  # characters: encoded in about a millisecond
_LETTERS = "abcdefghijklmnopqrstuvwxyz"  # no normalizer changes these
# transformers builds these without regard to what tokenizer_config.json says of a prefix space.
_AS_THE_FILE_SAYS = frozenset(["TokenizersBackend", "PreTrainedTokenizer", "None"])


class ChatTokenizer:
    """Raises ConfigError where the folder holds none, or contradicts itself."""

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ConfigError(
                f"{folder}: holds no tokenizer.json, and other tokenizers are not read"
            )
        self.config = _configuration(folder)
        self.plain = read_tokenizer(file, "language models", "llm")
        self.plain.no_padding()
        self.plain.no_truncation()
        _add_tokens(self.plain, self.config, folder)
        _set_prefix_space(self.plain, self.config)
        self.named = {name: _content(each) for name, each in _named_tokens(self.config).items()}
        self.control = frozenset(self._control_ids())
        self._shielded: _Shielded | None = None

    def id_of(self, token: str) -> int | None:
        found: int | None = self.plain.token_to_id(token)
        return found

    def encode_chat(self, chat: Traced) -> list[int]:
        """Encode as transformers does, except that only control tokens of the template count as
        such: others are text. Raises InvalidInput where it cannot be known who wrote one."""
        text = str.__str__(chat)
        encoding = encoding_of(self.plain, text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        # Place by place: to list all offsets holds the interpreter for as long as they are many.
        places = [place for place, id_ in enumerate(ids) if id_ in self.control]
        spans: list[tuple[int, int]] = [encoding.token_to_chars(place) for place in places]
        found = [Written(*span, ids[place]) for place, span in zip(places, spans, strict=True)]
        own = [each for each in found if _is_templates(chat, each)]
        if len(own) == len(found):
            return ids
        if self._shielded is None:
            self._shielded = _Shielded(self.plain, self.control)
        return self._shielded.encode(text, own)

    def _control_ids(self) -> Iterator[int]:
        """The ids of control tokens. A single letter or spaces are text, even if marked special."""
        named = set(self.named.values())
        for id_, token in self.plain.get_added_tokens_decoder().items():
            is_control = token.special or token.content in named
            if is_control and len(token.content) > 1 and not token.content.isspace():
                yield id_


def encoding_of(tokenizer: Any, text: str, *, add_special_tokens: bool = True) -> Any:
    """The library's encoding of a text. `encode` holds the interpreter until it is done, a second
    for a long text, and with it the event loop; `encode_batch` does not."""
    if len(text) <= _SHORT:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]


class Written(NamedTuple):
    """A control token in a text."""

    start: int
    end: int
    id: int


def _is_templates(chat: Traced, token: Written) -> bool:
    """Whether the template wrote all of it, apart from whitespace around it that some tokens
    include."""
    part = chat[token.start : token.end]
    origins = set(part.strip().origins or part.origins)
    if CALLER[0] in origins:
        return False
    if UNTRACED[0] in origins:
        raise InvalidInput(
            f"messages: the chat template makes {str.__str__(part)!r} of parts that can be traced"
            " neither to it nor to the messages"
        )
    return True


class _Shielded:
    """The same tokenizer with secret names for control tokens: they are recognised where these were
    written, and nowhere else."""

    def __init__(self, plain: Any, control: frozenset[int]) -> None:
        self._nonce = "".join(secrets.choice(_LETTERS) for _ in range(32))
        self._contents = {id_: plain.id_to_token(id_) for id_ in control}
        names = {content: self._name(id_) for id_, content in self._contents.items()}
        described = json.loads(plain.to_str())
        model = described["model"]
        unknown = model.get("unk_id", plain.token_to_id(model.get("unk_token") or ""))
        self._counted = control - {unknown}  # an unknown character is one in any text
        described = _renamed(described, names)
        self._tokenizer = type(plain).from_str(json.dumps(described))

    def _name(self, id_: int) -> str:
        """A name for a token. All have one length, so that none is the beginning of another."""
        return self._nonce + "".join(_LETTERS[int(digit)] for digit in f"{id_:010d}")

    def encode(self, text: str, own: Sequence[Written]) -> list[int]:
        parts, place = [], 0
        for start, end, id_ in own:
            spelled = text[start:end]
            if id_ not in self._counted and self._contents[id_] not in spelled:
                continue  # an unknown character stays what it is
            content = self._contents[id_] if self._contents[id_] in spelled else spelled.strip()
            at = start + spelled.find(content)
            parts += [text[place:at], self._name(id_)]
            place = at + len(content)
        parts.append(text[place:])
        text = "".join(parts)
        ids: list[int] = encoding_of(self._tokenizer, text, add_special_tokens=False).ids
        wanted = [each.id for each in own if each.id in self._counted]
        if [id_ for id_ in ids if id_ in self._counted] != wanted:
            raise InvalidInput("messages: their text looks the same as the template's own tokens")
        return ids


def _renamed(described: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A tokenizer's description with other names for these tokens, which nothing else makes."""
    model = described["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(token, token): id_ for token, id_ in vocabulary.items()}
    else:
        model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
    if "merges" in model:
        pairs = [each.split(" ", 1) if isinstance(each, str) else each for each in model["merges"]]
        model["merges"] = [
            pair for pair in pairs if names.keys().isdisjoint((*pair, "".join(pair)))
        ]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    for token in described["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    return {**described, "post_processor": None}


def _configuration(folder: Path) -> dict[str, Any]:
    config = read_optional_json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:  # as older folders have it
        config = {**config, **read_optional_json(folder / "special_tokens_map.json")}
    if config.get("split_special_tokens"):
        raise ConfigError(f"{folder}: split_special_tokens in tokenizer_config.json: not supported")
    return config


def _named_tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    """The named tokens, as transformers finds them: seven that every model may have, and the
    model's own (`image_token`)."""
    extra = config.get("extra_special_tokens")
    found = {
        name: value
        for name, value in config.items()
        if name in _NAMED or (name.endswith("_token") and isinstance(value, str | dict))
    }
    found |= extra if isinstance(extra, Mapping) else {}
    return {name: value for name, value in found.items() if _content(value)}


def _content(token: Any) -> str:
    return str(token.get("content") or "") if isinstance(token, Mapping) else token or ""


def _add_tokens(tokenizer: Any, config: Mapping[str, Any], folder: Path) -> None:
    """Add the tokens that only tokenizer_config.json names. Raises ConfigError where their ids
    differ."""
    from tokenizers import AddedToken

    def added(token: Any, **flags: Any) -> Any:
        fields = token if isinstance(token, Mapping) else {"content": token}
        return AddedToken(**{name: fields[name] for name in fields if name != "__type"} | flags)

    listed = config.get("added_tokens_decoder") or {}
    for id_, token in sorted((int(id_), token) for id_, token in listed.items()):
        tokenizer.add_tokens([added(token)])
        found = tokenizer.token_to_id(_content(token))
        if found != id_:
            raise ConfigError(
                f"{folder}: {_content(token)!r} is {id_} in tokenizer_config.json"
                f" (added_tokens_decoder), and {found} in tokenizer.json"
            )
    others = config.get("extra_special_tokens") or config.get("additional_special_tokens") or ()
    for token in (*_named_tokens(config).values(), *(others if isinstance(others, list) else ())):
        tokenizer.add_tokens([added(token, special=True)])


def _set_prefix_space(tokenizer: Any, config: Mapping[str, Any]) -> None:
    """`add_prefix_space` of tokenizer_config.json, for classes that build their own splitting."""
    from tokenizers.pre_tokenizers import ByteLevel

    wanted, kind = config.get("add_prefix_space"), str(config.get("tokenizer_class"))
    splitting = tokenizer.pre_tokenizer
    is_own = kind.removesuffix("Fast") not in _AS_THE_FILE_SAYS
    if isinstance(wanted, bool) and is_own and isinstance(splitting, ByteLevel):
        splitting.add_prefix_space = wanted
