"""How likely the tokens of an answer were, as OpenAI's two routes spell it."""

from collections.abc import Sequence
from typing import TypedDict

from headway.hosting.generation.language import Language
from headway.hosting.generation.pieces import Piece

LEAST = -9999.0  # JSON has no -inf


class TokenLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(TypedDict):
    content: list[ChatLogprob]
    refusal: None


class CompletionLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


def chat_entry(piece: Piece, language: Language) -> ChatLogprob | None:
    """Of one token; None where the piece has none."""
    if piece.token is None or piece.logprobs is None:
        return None
    return {
        **_spelled(language, piece.token, piece.logprobs.chosen),
        "top_logprobs": [_spelled(language, token, value) for token, value in piece.logprobs.top],
    }


def chat_logprobs(pieces: Sequence[Piece], language: Language) -> ChatLogprobs:
    entries = [chat_entry(piece, language) for piece in pieces]
    return {"content": [each for each in entries if each is not None], "refusal": None}


def completion_logprobs(
    pieces: Sequence[Piece], language: Language, offset: int
) -> CompletionLogprobs:
    """The older route's: lists side by side. `offset`: where in the text the first token is."""
    tokens: list[str] = []
    values: list[float] = []
    tops: list[dict[str, float]] = []
    offsets: list[int] = []
    for piece in pieces:
        if piece.token is None or piece.logprobs is None:
            continue
        spelled = _name(language, piece.token)
        tokens.append(spelled)
        values.append(max(LEAST, piece.logprobs.chosen))
        top = {_name(language, token): max(LEAST, value) for token, value in piece.logprobs.top}
        top.setdefault(spelled, values[-1])
        tops.append(top)
        offsets.append(offset)
        offset += len(piece.text)
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def _name(language: Language, token: int) -> str:
    """As a key: tokens that are no text by themselves must not be taken for one another."""
    spelled = language.bytes_of(token)
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{each:02x}" for each in spelled)


def _spelled(language: Language, token: int, value: float) -> TokenLogprob:
    return {
        "token": _text(language, token),
        "logprob": max(LEAST, value),
        "bytes": list(language.bytes_of(token)),
    }


def _text(language: Language, token: int) -> str:
    return language.bytes_of(token).decode(errors="replace")
