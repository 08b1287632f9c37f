"""How byte-level tokenizers split a text into words, by the names that GGUF files give them.

Each is a list of regular expressions: one after the other, on what the ones before left whole. They
are the models' own (of their tokenizer.json), where llama.cpp's are simplified.
"""

from typing import NamedTuple


class Splitting(NamedTuple):
    expressions: tuple[str, ...]
    ignores_merges: bool = False  # a word that is a token is that token
    begins: bool = False  # a text begins with the model's token for it, unless the file says
    composes: bool = False  # letters and their accents become one, as NFC has it


_SUFFIX = "'s|'t|'re|'ve|'m|'ll|'d"
_ANY_SUFFIX = f"(?i:{_SUFFIX})"
_GPT2 = rf"{_SUFFIX}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = rf"{_ANY_SUFFIX}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_ANY_SUFFIX}|{_WORD}|\p{{N}}|{_REST}"
_QWEN35 = (
    rf"{_ANY_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_REST_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_REST_SLASH}"
_GPT4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_ANY_SUFFIX}?|{_LEAD}{_UPPER}+{_LOWER}*{_ANY_SUFFIX}?"
    rf"|\p{{N}}{{1,3}}|{_REST_SLASH}"
)
_ASCII_MARKS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    rf"{_ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_BAILING = (
    rf"'(?i:[sdmt]|ll|ve|re)|{_LEAD}+\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]++[\r\n]*|\s*[\r\n]"
    r"|\s+(?!\S)|\s+"
).replace("?+\\p", "?\\p")
_SEED = rf"{_ANY_SUFFIX}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_EXAONE_MOE = (
    rf"{_ANY_SUFFIX}|{_LEAD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_MINICPM5 = (r"\p{N}{1,3}", _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+"))
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")

_NAMES = {
    Splitting((_GPT2,)): (
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert"
        " exaone4 mpt olmo jais trillion granite-docling"
    ),
    Splitting((r"\p{N}", _GPT2)): (
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2"
    ),
    Splitting((_LLAMA3,), ignores_merges=True, begins=True): (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"
    ),
    Splitting((_LLAMA3,)): "dbrx smaug-bpe chatglm-bpe",
    Splitting((_QWEN2,), composes=True): "qwen2",
    Splitting((_QWEN35,), composes=True): "qwen35",
    Splitting((_QWEN2,)): (
        "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"
    ),
    Splitting((_TEKKEN,), ignores_merges=True, begins=True): "tekken",
    Splitting((_GPT4O,)): "gpt-4o llama4 kanana2 talkie minimax-m2",
    Splitting((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)): "tiny_aya cohere2moe",
    Splitting(_DEEPSEEK3): "deepseek-v3 hunyuan-dense joyai-llm",
    Splitting(_DEEPSEEK_CODER): "deepseek-coder",
    Splitting(_FALCON): "falcon",
    Splitting((_BLOOM,)): "poro-chat bloom gpt3-finnish",
    Splitting((_BLOOM, r"\p{N}")): "viking",
    Splitting((_BAILING,)): "bailingmoe bailingmoe2 llada-moe",
    Splitting((_SEED,)): "seed-coder",
    Splitting((_EXAONE_MOE,)): "exaone-moe",
    Splitting((r"[^\n]+|[\n]+", _QWEN2)): "laguna",
    Splitting(_MINICPM5, ignores_merges=True): "minicpm5",
    Splitting(_DEFAULT): "default",
}
SPLITTINGS = {name: splitting for splitting, names in _NAMES.items() for name in names.split()}
