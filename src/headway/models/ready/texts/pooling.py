"""Turns the states of a text's tokens into a vector: pools them where the network runs, then
applies sentence-transformers' further steps: Dense, LayerNorm, Normalize."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from headway.backends.torch import import_torch
from headway.errors import ConfigError

Array = numpy.ndarray[Any, Any]
Step = Callable[[Array], Array]  # from rows of float32 to rows of float32


# ---- pooling: by numpy's arrays and torch's alike. A mask is of whole numbers.


def all_of(given: Any, mask: Any) -> Any:
    return given


def first_of(states: Any, mask: Any) -> Any:
    """The first token's state."""
    return states[:, 0]


def mean_of(states: Any, mask: Any) -> Any:
    """The mean over the tokens, without the padding."""
    weights = _like(states, mask)
    return _sum(states, weights) / _count(weights)


def _first_real(states: Any, mask: Any) -> Any:
    return _at(states, mask.argmax(1))


def _largest(states: Any, mask: Any) -> Any:
    found = (states + (_like(states, mask) - 1)[:, :, None] * 1e30).max(1)
    return getattr(found, "values", found)  # torch's has the places, too


def _mean_by_root(states: Any, mask: Any) -> Any:
    weights = _like(states, mask)
    return _sum(states, weights) / _count(weights) ** 0.5


def _mean_by_place(states: Any, places: Any) -> Any:
    """A mean in which later tokens count more. Half precision is too coarse beyond 256 tokens."""
    states = states.astype("float32") if isinstance(states, numpy.ndarray) else states.float()
    return mean_of(states, places)


def _last(states: Any, mask: Any) -> Any:
    return _at(states, (mask * mask.cumsum(1)).argmax(1))


def _like(states: Any, mask: Any) -> Any:
    return mask.astype(states.dtype) if isinstance(mask, numpy.ndarray) else mask.to(states.dtype)


def _sum(states: Any, weights: Any) -> Any:
    return (weights[:, None, :] @ states)[:, 0]


def _count(weights: Any) -> Any:
    count = weights.sum(1)[:, None]
    return count + (count == 0)  # of a text that is all prompt


def _at(states: Any, places: Any) -> Any:
    return states[list(range(len(places))), places]


@dataclass(frozen=True, slots=True)
class Pooling:
    """Several ways beside each other, in this order. `skip`: how many tokens are the prompt's, and
    do not count."""

    modes: tuple[str, ...] = ("mean",)
    skip: int = 0

    def __call__(self, states: Any, mask: Any) -> Any:
        parts = [self._pool(mode, states, mask) for mode in self.modes]
        if len(parts) == 1:
            return parts[0]
        if isinstance(states, numpy.ndarray):
            return numpy.concatenate(parts, -1)
        return import_torch().cat(parts, -1)

    def _pool(self, mode: str, states: Any, mask: Any) -> Any:
        if mode == "cls" and not self.skip:
            return first_of(states, mask)
        places = mask.cumsum(1) * mask if self.skip or mode == "weightedmean" else mask
        if self.skip:
            mask, places = mask * (places > self.skip), places * (places > self.skip)
        return POOLINGS[mode](states, places if mode == "weightedmean" else mask)


POOLINGS: Mapping[str, Callable[[Any, Any], Any]] = {
    "cls": _first_real,
    "max": _largest,
    "mean": mean_of,
    "mean_sqrt_len_tokens": _mean_by_root,
    "weightedmean": _mean_by_place,
    "lasttoken": _last,
}


# ---- what may follow: on the processor, on one row a text


def unit(rows: Array) -> Array:
    """The rows, scaled to length 1, so that a product of two is the cosine of their angle."""
    found: Array = rows / numpy.maximum(numpy.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return found


@dataclass(frozen=True, slots=True)
class Dense:
    weight: Array
    bias: Array | None
    activation: Callable[[Array], Array]

    def __call__(self, rows: Array) -> Array:
        found = rows @ self.weight.T
        return self.activation(found if self.bias is None else found + self.bias)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    weight: Array
    bias: Array

    def __call__(self, rows: Array) -> Array:
        centred = rows - rows.mean(1, keepdims=True)
        spread = numpy.sqrt((centred * centred).mean(1, keepdims=True) + 1e-5)
        found: Array = centred / spread * self.weight + self.bias
        return found


@dataclass(frozen=True, slots=True)
class Truncate:
    """The first numbers only: models are trained so that they say most."""

    width: int

    def __call__(self, rows: Array) -> Array:
        return numpy.ascontiguousarray(rows[:, : self.width])


def through(steps: Sequence[Step], rows: Array) -> Array:
    for step in steps:
        rows = step(rows)
    return rows.astype(numpy.float32, copy=False)


# ---- activations


def sigmoid(logits: Array) -> Array:
    found: Array = 0.5 * (1.0 + numpy.tanh(0.5 * logits))  # nothing overflows
    return found


def softmax(logits: Array) -> Array:
    powers = numpy.exp(logits - logits.max(1, keepdims=True))
    shares: Array = powers / powers.sum(1, keepdims=True)
    return shares


def identity(logits: Array) -> Array:
    return logits


def _relu(rows: Array) -> Array:
    return numpy.maximum(rows, 0)


def _silu(rows: Array) -> Array:
    return rows * sigmoid(rows)


def _gelu(rows: Array) -> Array:
    erf = numpy.vectorize(math.erf, otypes=[numpy.float64])
    found: Array = 0.5 * rows * (1.0 + erf(rows / math.sqrt(2.0)))
    return found


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "GELU": _gelu,
    "Identity": identity,
    "ReLU": _relu,
    "SiLU": _silu,
    "Sigmoid": sigmoid,
    "Tanh": numpy.tanh,
}


def activation_named(name: str, where: str) -> Callable[[Array], Array]:
    """The activation with this torch class name, such as torch.nn.modules.activation.Tanh."""
    found = ACTIVATIONS.get(name.rpartition(".")[2]) if name.startswith("torch.nn.") else None
    if found is None:
        raise ConfigError(f"{where}: the activation {name} is not one of {sorted(ACTIVATIONS)}")
    return found
