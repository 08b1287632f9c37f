"""What a model gives, as JSON can carry it."""

from headway.signature.foreign import plain_of

__all__ = ["plain_of"]
