"""The words that llama.cpp makes of a text, by the name of the splitting."""

TEXT = ""
SPLITS: dict[str, list[str]] = {}
