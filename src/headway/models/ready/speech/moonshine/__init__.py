"""Moonshine base (English speech), from the files of a pinned package. It is built as a package of
a foreign package's would be: the catalogue knows its `Entry`, and nothing else of it."""

from headway.models.ready.speech.moonshine.model import MOONSHINE_WEIGHTS, Moonshine

__all__ = ["MOONSHINE_WEIGHTS", "Moonshine"]
