"""Small tokenizers of the kinds that language models have, trained on a few sentences."""

from collections.abc import Callable
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

CONTROL = [
    *("<unk>", "<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>"),
    *("<|system|>", "<|end|>", "[INST]", "[/INST]", "<|eot_id|>", "<|start_header_id|>"),
    *("<|end_header_id|>", "<start_of_turn>", "<end_of_turn>", "<image>", "<|Tool|>"),
]
PLAIN = ["<think>", "</think>", "<tool_call>"]  # added, and not special
CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 2026, and we've 12345 reasons!",
    "user assistant system you are a helpful assistant named hello how can i help you today",
    "  def main():\n\treturn {'a': [1, 2, 3]}  # naïve café, Ünïcödé\n\n\n",
    "日本語のテキスト。你好，世界！ 안녕하세요 привет мир नमस्ते",
    "question answer instruction response human bot : \n\n### You'll SEE what I'm doing; DON'T",
]
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def save(kind: str, folder: Path) -> Path:
    tokenizer = KINDS[kind]()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def _with_tokens(tokenizer: Tokenizer, *, is_normalized: bool = False) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(each, normalized=is_normalized) for each in CONTROL])
    tokenizer.add_tokens([AddedToken(each, normalized=False) for each in PLAIN])
    return tokenizer


def byte_level() -> Tokenizer:
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


def byte_level_prefix() -> Tokenizer:
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))


def llama3() -> Tokenizer:
    tokenizer = _byte_level(_split(_LLAMA3))
    tokenizer.model.ignore_merges = True
    return tokenizer


def qwen() -> Tokenizer:
    tokenizer = _byte_level(_split(_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")))
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def folding() -> Tokenizer:
    """Full-width letters and capitals become others, also in the search for special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, _bpe_trainer())
    return _with_tokens(tokenizer, is_normalized=True)


def llama2() -> Tokenizer:
    """As transformers converts SentencePiece for Llama 2: a space before every part."""
    tokenizer = _sentencepiece()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return _with_tokens(tokenizer)


def mistral() -> Tokenizer:
    tokenizer = _sentencepiece()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return _with_tokens(tokenizer)


def gemma() -> Tokenizer:
    tokenizer = _sentencepiece()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return _with_tokens(tokenizer)


def unigram() -> Tokenizer:
    """Its vocabulary holds the special tokens, too, as XLM-R's and T5's do."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=CONTROL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _with_tokens(tokenizer)


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=CONTROL, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _with_tokens(tokenizer)


def words() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(
        CORPUS, trainers.WordLevelTrainer(special_tokens=CONTROL, show_progress=False)
    )
    return _with_tokens(tokenizer)


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "byte-level with a prefix space": byte_level_prefix,
    "llama-3": llama3,
    "qwen": qwen,
    "folding": folding,
    "llama-2": llama2,
    "mistral": mistral,
    "gemma": gemma,
    "unigram": unigram,
    "wordpiece": wordpiece,
    "words": words,
}


def _byte_level(splitting: pre_tokenizers.PreTokenizer) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitting
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, _bpe_trainer())
    return _with_tokens(tokenizer)


def _bpe_trainer() -> trainers.BpeTrainer:
    return trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _sentencepiece() -> Tokenizer:
    """BPE over characters, bytes for the others."""
    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=250, limit_alphabet=120, show_progress=False)
    learnt.train_from_iterator(CORPUS, trainer)
    pieces = sorted(learnt.get_vocab(), key=learnt.get_vocab().__getitem__)
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {piece: id_ for id_, piece in enumerate([*first, *pieces])}
    merges = _merges(pieces, vocabulary)
    model = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def _merges(pieces: list[str], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to make a piece, in the order of the pieces."""
    return [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
