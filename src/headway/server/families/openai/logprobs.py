"""Log-probabilities of tokens, in the form of OpenAI's two routes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias, TypedDict

from headway.core.generation.sampling import Logprobs
from headway.core.generation.sequence import FinishReason
from headway.hosting.generation.language import Language
from headway.hosting.generation.pieces import AnswerPiece
from headway.models.chat.text import Detokenizer

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
    token_logprobs: list[float | None]  # None: of a prompt's first token, before which is nothing
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def chat_entry(piece: AnswerPiece, language: Language) -> ChatLogprob | None:
    """The entry of one token; None where the piece has no token or no log probability."""
    if piece.token is None or piece.logprobs is None:
        return None
    return {
        **_entry(language, piece.token, piece.logprobs.chosen),
        "top_logprobs": [_entry(language, token, value) for token, value in piece.logprobs.top],
    }


def chat_logprobs(pieces: Sequence[AnswerPiece], language: Language) -> ChatLogprobs:
    entries = [chat_entry(piece, language) for piece in pieces]
    return {"content": [each for each in entries if each is not None], "refusal": None}


def completion_logprobs(
    pieces: Sequence[AnswerPiece], language: Language, offset: int
) -> CompletionLogprobs:
    """The older route's: lists side by side. `offset`: where in the text the first token is."""
    tokens: list[str] = []
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for piece in pieces:
        if piece.token is None or piece.logprobs is None:
            continue
        tokens.append(_name(language, piece.token))
        values.append(max(LEAST, piece.logprobs.chosen))
        tops.append(_top(language, piece.token, piece.logprobs))
        offsets.append(offset)
        offset += len(piece.text)
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": tops,
        "text_offset": offsets,
    }


class ScoredToken(TypedDict):
    """vLLM's."""

    logprob: float
    rank: int | None  # among all tokens; None: further behind than those that were asked for
    decoded_token: str


PromptScores: TypeAlias = list[dict[str, ScoredToken] | None]


def prompt_scores(
    prompt: Sequence[int], pieces: Sequence[AnswerPiece], language: Language, most: int
) -> PromptScores:
    """For each token of a prompt, its own score and those of the likeliest, by token id."""
    scores = next(each.logprobs.prompt for each in pieces if each.logprobs is not None)
    found: PromptScores = [None]  # nothing is before the first
    for token, score in zip(prompt[1:], scores, strict=True):
        ranks = {each: place for place, (each, _) in enumerate(score.top, start=1)}
        values = {token: score.chosen, **dict(score.top[:most])}
        found.append(
            {
                str(each): {
                    "logprob": max(LEAST, value),
                    "rank": ranks.get(each),
                    "decoded_token": _text(language, each),
                }
                for each, value in values.items()
            }
        )
    return found


def cut(pieces: Sequence[AnswerPiece], most: int) -> list[AnswerPiece]:
    """The pieces as they are without the prompt's scores: with `most` of the likeliest tokens, and
    without the token that ends an answer."""
    return [_cut(each, most) for each in pieces]


def _cut(piece: AnswerPiece, most: int) -> AnswerPiece:
    logprobs, finished = piece.logprobs, piece.finished
    if finished is not None and finished.reason is FinishReason.STOP:
        return piece._replace(token=None, logprobs=None)
    if logprobs is None or len(logprobs.top) <= most:
        return piece
    return piece._replace(logprobs=replace(logprobs, top=logprobs.top[:most]))


def prompt_logprobs(
    prompt: Sequence[int], scores: Sequence[Logprobs], language: Language
) -> CompletionLogprobs:
    """The same of a prompt that is echoed."""
    offsets, offset = [], 0
    detokenizer = Detokenizer(language.text)
    for token in prompt:
        offsets.append(offset)
        offset += len(detokenizer.step(token))
    scored = list(zip(prompt[1:], scores, strict=True))
    return {
        "tokens": [_name(language, token) for token in prompt],
        "token_logprobs": [None, *(max(LEAST, score.chosen) for _, score in scored)],
        "top_logprobs": [None, *(_top(language, *each) for each in scored)],
        "text_offset": offsets,
    }


def joined(first: CompletionLogprobs, then: CompletionLogprobs) -> CompletionLogprobs:
    return {
        "tokens": first["tokens"] + then["tokens"],
        "token_logprobs": first["token_logprobs"] + then["token_logprobs"],
        "top_logprobs": first["top_logprobs"] + then["top_logprobs"],
        "text_offset": first["text_offset"] + then["text_offset"],
    }


def _top(language: Language, token: int, logprobs: Logprobs) -> dict[str, float]:
    """The likeliest, and the token itself."""
    top = {_name(language, each): max(LEAST, value) for each, value in logprobs.top}
    top.setdefault(_name(language, token), max(LEAST, logprobs.chosen))
    return top


def _name(language: Language, token: int) -> str:
    """The token's text as a key. Tokens that are no text by themselves get different keys."""
    raw = language.bytes_of(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{each:02x}" for each in raw)


def _entry(language: Language, token: int, value: float) -> TokenLogprob:
    return {
        "token": _text(language, token),
        "logprob": max(LEAST, value),
        "bytes": list(language.bytes_of(token)),
    }


def _text(language: Language, token: int) -> str:
    return language.bytes_of(token).decode(errors="replace")
