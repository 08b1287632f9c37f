"""Deprecated: `headway.models.speech.moonshine` is where this lives now."""

import warnings

from headway.models.speech.moonshine import MOONSHINE_WEIGHTS, Moonshine

__all__ = ["MOONSHINE_WEIGHTS", "Moonshine"]

warnings.warn(
    "headway.models.moonshine is deprecated: import headway.models.speech.moonshine",
    DeprecationWarning,
    stacklevel=2,
)
