"""A model's inputs and outputs on the wire, read from its type hints.

Rows of named tensors become a model's Python values and back, and so does JSON; every mistake names
its place. It knows nothing of protocols: they only need `inputs`, `outputs` and the conversions.
"""

import dataclasses
from typing import Any

from headway.errors import ConfigError
from headway.model import Model, Tensor
from headway.signature.arrays import array_of
from headway.signature.python_values import Side, derived_side, side_of
from headway.signature.reading import ParameterHints, input_hint, output_hint
from headway.signature.values import Decoded, Values

__all__ = [
    "Decoded",
    "ParameterHints",
    "Side",
    "Signature",
    "Values",
    "array_of",
    "side_of",
    "signature_of",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """Both sides of an item model, with the hints of the whole values (None if unknown)."""

    input: Side
    output: Side
    input_hint: Any = None
    output_hint: Any = None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.input.tensors

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return self.output.tensors


def signature_of(model: Model[Any, Any]) -> Signature:
    """The signature from `inputs` and `outputs` if the class declares them, else from its hints;
    without hints, anything is accepted. Raises ConfigError."""
    takes, gives = input_hint(model), output_hint(model)
    return Signature(
        input=_input_side(model, takes),
        output=_output_side(model, gives),
        input_hint=takes,
        output_hint=gives,
    )


def _input_side(model: Model[Any, Any], hint: Any) -> Side:
    declared = getattr(model, "inputs", ())
    try:
        return side_of(declared, hint) if declared else derived_side(hint, "input")
    except ConfigError as error:
        raise ConfigError(f"{type(model).__name__}: its inputs: {error}") from error


def _output_side(model: Model[Any, Any], hint: Any) -> Side:
    """A result is the model's word: a class that JSON may not know is found when it comes."""
    declared = getattr(model, "outputs", ())
    try:
        return side_of(declared, hint) if declared else derived_side(hint, "output")
    except ConfigError:
        return side_of(declared) if declared else derived_side(None, "output")
