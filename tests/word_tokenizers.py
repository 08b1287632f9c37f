"""Tokenizers of whole words, in BERT's manner, for the small models that tests make."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def save_tokenizer(folder: Path, words: Iterable[str]) -> Any:
    """As folder/tokenizer.json: the special tokens, then these words, each its place."""
    import tokenizers

    places = {word: place for place, word in enumerate([*SPECIALS, *words])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(places, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(each, places[each]) for each in ("[CLS]", "[SEP]")],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer
