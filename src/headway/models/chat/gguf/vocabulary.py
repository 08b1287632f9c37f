"""A GGUF file's tokenizer, as `tokenizers` has it: byte-level BPE, or SentencePiece's BPE."""

import itertools
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any

from headway.models.chat.gguf.metadata import Metadata
from headway.models.chat.gguf.splitting import SPLITTINGS, Splitting

# Tokens that end an answer even if the file does not say so, as in llama.cpp.
_ENDS = frozenset(
    [
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>"),
        *("<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "<|end_of_text|>"),
        *("<end_of_utterance>", "<｜end▁of▁sentence｜>"),
    ]
)
_NAMED = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",  # so it is written in these files
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}
_SPACE = "▁"


class TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class GgufVocabulary:
    """Raises ConfigError for what is not read, or makes no sense."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.kind = metadata.need("tokenizer.ggml.model")
        if self.kind not in ("gpt2", "llama"):
            raise metadata.refusal(f"its tokenizer is {self.kind!r}; gpt2 and llama are read")
        self.tokens: list[str] = self._list("tokens")
        self._types: list[int] = self._list("token_type")
        self.ids = {token: id_ for id_, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            raise metadata.refusal("tokenizer.ggml.tokens holds a token twice")
        defaults = {"bos": 1, "eos": 2, "unknown": 0} if self.kind == "llama" else {}
        self.named = {
            name: id_
            for name, key in _NAMED.items()
            if (id_ := self._id(key, defaults.get(key))) is not None
        }
        self.ends = sorted(self._end_ids())
        metadata.only("tokenizer.ggml.add_sep_token", False)

    def _list(self, key: str) -> list[Any]:
        found = self._metadata.need(f"tokenizer.ggml.{key}")
        if not isinstance(found, list) or (key != "tokens" and len(found) < len(self.tokens)):
            raise self._metadata.refusal(f"tokenizer.ggml.{key} has not one entry for each token")
        return found

    def _id(self, name: str, default: int | None = None) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        found = self._metadata.get(key, default)
        if found is not None and not (isinstance(found, int) and 0 <= found < len(self.tokens)):
            raise self._metadata.refusal(f"{key} = {found!r}, of {len(self.tokens)} tokens")
        return found

    def _end_ids(self) -> set[int]:
        declared = {self.named.get("eos_token"), self._id("eot"), self._id("eom")}
        found = {id_ for id_ in declared if id_ is not None}
        found |= {self.ids[token] for token in _ENDS & self.ids.keys()}
        if not found:
            raise self._metadata.refusal("its metadata has no 'tokenizer.ggml.eos_token_id'")
        return found

    def type_of(self, id_: int) -> int:
        is_control = id_ in self.ends or self._types[id_] == TokenType.UNKNOWN
        return TokenType.CONTROL if is_control else self._types[id_]

    def tokenizer(self) -> Any:
        tokenizer = _Bytes(self).built() if self.kind == "gpt2" else _Pieces(self).built()
        self._add_tokens(tokenizer)
        return tokenizer

    def _add_tokens(self, tokenizer: Any) -> None:
        """Add control tokens as special ones, and user-defined tokens as whole but shown ones."""
        from tokenizers import AddedToken

        for id_, token in enumerate(self.tokens):
            kind = self.type_of(id_)
            if kind == TokenType.CONTROL:
                tokenizer.add_special_tokens([AddedToken(token, normalized=False)])
            elif kind == TokenType.USER_DEFINED:
                tokenizer.add_tokens([AddedToken(token, normalized=False)])

    def frame(self, tokenizer: Any, *, begins: bool) -> None:
        """Add the tokens before and after each text. `begins`: the default, if the file does not
        say."""
        from tokenizers.processors import TemplateProcessing

        begins = self._metadata.get("tokenizer.ggml.add_bos_token", begins)
        ends = self._metadata.get("tokenizer.ggml.add_eos_token", False)
        names = [name for name, is_used in (("bos_token", begins), ("eos_token", ends)) if is_used]
        for name in names:
            if name not in self.named:
                raise self._metadata.refusal(f"tokenizer.ggml.add_{name} without a {name}")
        if names:
            spelled = {name: self.tokens[self.named[name]] for name in names}
            parts = [spelled.get("bos_token"), "$A", spelled.get("eos_token")]
            tokenizer.post_processor = TemplateProcessing(
                single=[part for part in parts if part is not None],
                special_tokens=[(token, self.ids[token]) for token in spelled.values()],
            )

    @property
    def metadata(self) -> Metadata:
        return self._metadata


class _Bytes:
    """A byte-level vocabulary, as GPT-2 has it."""

    def __init__(self, vocabulary: GgufVocabulary) -> None:
        self._vocabulary = vocabulary
        metadata = self._metadata = vocabulary.metadata
        pre = metadata.need("tokenizer.ggml.pre")
        if pre not in SPLITTINGS:
            raise metadata.refusal(f"tokenizer.ggml.pre = {pre!r} is not supported")
        self._splitting: Splitting = SPLITTINGS[pre]
        metadata.only("tokenizer.ggml.add_space_prefix", False)
        metadata.only("tokenizer.ggml.remove_extra_whitespaces", False)
        metadata.get("tokenizer.ggml.scores")  # of no use beside merges

    def built(self) -> Any:
        from tokenizers import Regex, Tokenizer, decoders, models, normalizers
        from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

        ids = self._vocabulary.ids
        model = models.BPE(
            vocab=ids, merges=self._merges(), ignore_merges=self._splitting.ignores_merges
        )
        tokenizer = Tokenizer(model)
        splits = [Split(Regex(each), "isolated") for each in self._splitting.expressions]
        in_bytes = ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = Sequence([*splits, in_bytes])
        tokenizer.decoder = decoders.ByteLevel()
        if self._splitting.composes:
            tokenizer.normalizer = normalizers.NFC()
        self._vocabulary.frame(tokenizer, begins=self._splitting.begins)
        return tokenizer

    def _merges(self) -> list[tuple[str, str]]:
        merges, known = [], self._vocabulary.ids
        for each in self._metadata.need("tokenizer.ggml.merges"):
            first, space, second = each.partition(" ")
            is_known = first in known and second in known and first + second in known
            if not space or not is_known:
                raise self._metadata.refusal(f"its tokenizer merges {each!r:.80} to no token")
            merges.append((first, second))
        return merges


class _Pieces:
    """A vocabulary as SentencePiece has it: two neighbours that form a piece are merged, the best
    score first."""

    def __init__(self, vocabulary: GgufVocabulary) -> None:
        self._vocabulary = vocabulary
        metadata = self._metadata = vocabulary.metadata
        self._scores: Sequence[float] = metadata.need("tokenizer.ggml.scores")
        if len(self._scores) != len(vocabulary.tokens):
            raise metadata.refusal("tokenizer.ggml.scores has not one entry for each token")
        metadata.only("tokenizer.ggml.remove_extra_whitespaces", False)
        metadata.only("tokenizer.ggml.pre", "default")
        self._has_prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)

    def built(self) -> Any:
        from tokenizers import Tokenizer, decoders, models, normalizers

        vocabulary = self._vocabulary
        model = models.BPE(
            vocab=vocabulary.ids,
            merges=self._merges(),
            unk_token=vocabulary.tokens[vocabulary.named["unk_token"]],
            fuse_unk=True,
            byte_fallback=self._has_bytes(),
        )
        tokenizer = Tokenizer(model)
        spaces = normalizers.Replace(" ", _SPACE)
        before = [normalizers.Prepend(_SPACE)] if self._has_prefix else []
        tokenizer.normalizer = normalizers.Sequence([*before, spaces])
        after = [decoders.Strip(" ", 1, 0)] if self._has_prefix else []
        steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *after]
        tokenizer.decoder = decoders.Sequence(steps)
        vocabulary.frame(tokenizer, begins=True)
        return tokenizer

    def _has_bytes(self) -> bool:
        return all(f"<0x{byte:02X}>" in self._vocabulary.ids for byte in range(256))

    def _merges(self) -> list[tuple[str, str]]:
        pieces = [
            (-self._scores[id_], piece)
            for id_, piece in enumerate(self._vocabulary.tokens)
            if len(piece) > 1 and self._vocabulary.type_of(id_) == TokenType.NORMAL
        ]
        pieces = [pair for pair in pieces if next(self._halves(pair[1]), None)]
        pieces.sort(key=lambda pair: pair[0])
        for (score, piece), (other, after) in itertools.pairwise(pieces):
            if score == other:
                raise self._metadata.refusal(
                    f"tokenizer.ggml.scores: {piece!r} and {after!r} have the same, so that their"
                    " order is not known"
                )
        return [pair for _, piece in pieces for pair in self._halves(piece)]

    def _halves(self, piece: str) -> Iterator[tuple[str, str]]:
        known = self._vocabulary.ids
        for cut in range(1, len(piece)):
            if piece[:cut] in known and piece[cut:] in known:
                yield piece[:cut], piece[cut:]
