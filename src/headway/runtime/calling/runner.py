"""How the user's code is called: lists of items, or named arrays with rows first.

A runner knows the shape of one value (its rows, which others may share its batch), how to cut and
rejoin a large one, and how to call the model on many; it checks what comes back. It knows nothing
of queues, threads or time.
"""

import asyncio
import copy
import functools
import inspect
import math
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from headway.errors import InvalidInput, ModelFailed, called
from headway.model import Tensor, TensorModel, holds_results, overrides
from headway.runtime.calling.blocked_loop import BlockedLoopWatch
from headway.runtime.calling.ownership import own, own_all, own_outputs, own_results
from headway.runtime.calling.row_dependence import RowDependence
from headway.runtime.calling.varying import Varying

if TYPE_CHECKING:
    import numpy

    from headway.runtime.calling.declared import DeclaredOutput


Value = Any  # the user's own; this module does not look inside


class ModelRunner:
    """The base class of runners: holds the model's `predict`."""

    name: str
    is_async: bool
    may_rerun: bool
    row_dependence: RowDependence | None = None  # None: there are no arrays
    _loop_watch: BlockedLoopWatch
    _is_here: bool = True  # False: sending values to another process copies them
    _predict: Callable[..., Any]

    def shape(self, value: Value) -> tuple[int, int, Hashable]:
        """Rows, size and partition of one value; raises InvalidInput."""
        raise NotImplementedError

    def given(self, values: list[Value]) -> list[Value]:
        """Copies for the model, which may change them: a rerun must find what the callers sent."""
        raise NotImplementedError

    def cut(self, value: Value, start: int, stop: int) -> Value:
        raise NotImplementedError

    def join(self, results: list[Any]) -> Any:
        raise NotImplementedError

    async def predict(self, values: list[Value], padded_rows: int) -> list[Any]:
        raise NotImplementedError

    def with_keywords(self, keywords: Mapping[str, Any]) -> Self:
        """This runner, with keywords for the model."""
        same = copy.copy(self)
        same._predict = functools.partial(self._predict, **keywords)
        return same

    def elsewhere(self, predict: Callable[..., Any]) -> Self:
        """This runner for a model in another process: the function takes its batches there."""
        same = copy.copy(self)
        same.is_async = False
        same._is_here = False
        same._predict = predict
        return same

    async def _call(self, batch: Any) -> Any:
        """In a thread, awaitables are not awaited, but treated as wrong results."""
        results = self._predict(batch)
        if isinstance(results, Awaitable) and asyncio._get_running_loop() is not None:
            return await self._loop_watch.watched(results)
        return results


class Rows(NamedTuple):
    """Arrays that are concatenated along their rows when they are written to another process."""

    arrays: "list[numpy.ndarray[Any, Any]]"

    @property
    def dtype(self) -> "numpy.dtype[Any]":
        dtype: numpy.dtype[Any] = self.arrays[0].dtype
        return dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(len(array) for array in self.arrays), *self.arrays[0].shape[1:])

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)


class ItemRunner(ModelRunner):
    """A function or `headway.Model`: a list in, a list of the same length out."""

    def __init__(
        self,
        predict: Callable[[list[Any]], Any],
        *,
        name: str,
        is_async: bool,
        may_rerun: bool = True,
        writes_inputs: bool = True,
    ) -> None:
        self.name = name
        self.may_rerun = may_rerun
        self._writes_inputs = writes_inputs
        self.is_async = is_async
        self._loop_watch = BlockedLoopWatch(name)
        self._predict = predict

    def shape(self, value: Value) -> tuple[int, int, Hashable]:
        return 1, 0, None

    def cut(self, value: Value, start: int, stop: int) -> Value:
        raise AssertionError("an item is one row; it is never cut")

    def join(self, results: list[Any]) -> Any:
        raise AssertionError("an item is one row; it is never joined")

    async def predict(self, values: list[Value], padded_rows: int) -> list[Any]:
        rows = len(values)
        results = await self._call(self.given(_padded(values, padded_rows)))
        self._check(results, padded_rows)
        return (own_results(results) if self._is_here else list(results))[:rows]

    def given(self, values: list[Value]) -> list[Value]:
        return own_all(values) if self._writes_inputs and self._is_here else values[:]

    def _check(self, results: Any, padded_rows: int) -> None:
        if not holds_results(results):
            raise BrokenContract(
                f"{self.name} returned {type(results).__name__}; "
                f"a list of {padded_rows} results was expected"
            )
        if len(results) != padded_rows:
            raise BrokenContract(
                f"{self.name} returned {len(results)} results for {padded_rows} inputs"
            )


class TensorRunner(ModelRunner):
    """A `headway.TensorModel`: arrays are concatenated along their rows, and split again."""

    def __init__(self, model: TensorModel, *, name: str) -> None:
        import numpy

        self.name = name
        self.may_rerun = model.rerun
        self.is_async = is_async_function(model.predict)
        self._loop_watch = BlockedLoopWatch(name)
        self._numpy = numpy
        self._predict = model.predict
        self._concatenate: Callable[[list[numpy.ndarray[Any, Any]]], Any] = numpy.concatenate
        self._writes_inputs = model.writes_inputs
        self._inputs = {tensor.name: tensor for tensor in model.inputs}
        self._outputs = _declared(model)
        self.varying = Varying.of(model)
        self.row_dependence: RowDependence = RowDependence(model)
        self.checks_inputs = overrides(model, "check_inputs")
        self._check_inputs = model.check_inputs
        self.knows_inputs = bool(self._inputs)
        # Nothing varies but the rows: values that pass the checks may share any batch. Else a
        # row costs by its elements.
        self.is_uniform = bool(self._inputs) and not any(
            -1 in tensor.shape[1:] for tensor in model.inputs
        )

    def shape(self, value: Value) -> tuple[int, int, Hashable]:
        if not isinstance(value, Mapping) or not value:
            raise InvalidInput(f"{self.name} takes named arrays, e.g. {{'x': array}}")
        self._check_names(value)
        rows = {array.shape[0] if array.ndim else 0 for array in value.values()}
        if len(rows) != 1 or not all(rows):
            shapes = {name: array.shape for name, array in value.items()}
            raise InvalidInput(f"every input needs the same number of rows (at least 1): {shapes}")
        for name, array in value.items():
            self._check(name, array)
        if self.checks_inputs:
            self._check_inputs(value)
        [count] = rows
        if self.row_dependence.is_alone:
            self.row_dependence.check_rows(count)
            return 1, sum(array.size for array in value.values()), None
        if self.is_uniform:
            return count, 0, None
        length = self._length(value)
        if length is not None:
            return count, length, self._partition_but_length(value)
        partition = tuple(
            (name, array.dtype.str, array.shape[1:]) for name, array in sorted(value.items())
        )
        size = sum(math.prod(shape) for _, _, shape in partition)
        return count, size, partition

    def plain(self, value: Value) -> Value:
        """Convert subclasses of arrays: their methods are foreign code, and one of them would
        turn the whole batch into that class."""
        if not isinstance(value, Mapping):
            return value  # `shape` says so
        ndarray = self._numpy.ndarray
        for array in value.values():
            if type(array) is not ndarray and isinstance(array, ndarray):
                return {name: self._numpy.asarray(each) for name, each in value.items()}
        return value

    def _length(self, value: Value) -> int | None:
        """None: only values of the same shape may share a batch with it."""
        padding = self.varying.padding
        return None if padding is None else padding.length_of(value)

    def _partition_but_length(self, value: Value) -> Hashable:
        padding = self.varying.padding
        assert padding is not None
        return tuple(
            (name, array.dtype.str, array.shape[2 if name in padding.values else 1 :])
            for name, array in sorted(value.items())
        )

    def elsewhere(self, predict: Callable[..., Any]) -> Self:
        same = super().elsewhere(predict)
        same._concatenate = Rows  # concatenated while they are sent, which saves a copy
        return same

    def given(self, values: list[Value]) -> list[Value]:
        raise AssertionError("arrays are concatenated; that is a copy")

    def cut(self, value: Value, start: int, stop: int) -> Value:
        return {name: array[start:stop] for name, array in value.items()}

    def join(self, results: list[Any]) -> Any:
        return {
            name: self._numpy.concatenate([result[name] for result in results])
            for name in results[0]
        }

    async def predict(self, values: list[Value], padded_rows: int) -> list[Any]:
        if self.row_dependence.is_alone:
            return [self._whole_answer(await self._call(self._own(value))) for value in values]
        outputs = await self._call(self._concatenated(values, padded_rows))
        self._check_outputs(outputs, padded_rows)
        return self._split(own_outputs(outputs) if self._is_here else outputs, values)

    # ---- one request a run

    def _own(self, value: Value) -> Value:
        if not (self._writes_inputs and self._is_here):
            return dict(value)
        return {name: own(array) for name, array in value.items()}

    def _whole_answer(self, outputs: Any) -> Any:
        self._check_names_of(outputs)
        if self._outputs:
            arrays = {name: self._outputs[name].array_of(array) for name, array in outputs.items()}
        else:
            arrays = {name: self._numpy.asarray(array) for name, array in outputs.items()}
        for name, array in arrays.items():
            self._check_declared(name, array)
        return own_outputs(arrays) if self._is_here else arrays

    def _check_names(self, value: Mapping[str, Any]) -> None:
        if self._inputs and value.keys() != self._inputs.keys():
            raise InvalidInput(
                f"{self.name} takes inputs {sorted(self._inputs)}, not {sorted(value)}"
            )
        for name, array in value.items():
            if not isinstance(array, self._numpy.ndarray):
                raise InvalidInput(f"{called(name)} is a {type(array).__name__}, not an array")

    def _check(self, name: str, array: "numpy.ndarray[Any, Any]") -> None:
        tensor = self._inputs.get(name)
        if tensor is None:
            return
        if array.dtype != self._numpy.dtype(tensor.array_dtype):
            raise InvalidInput(f"{called(name)} has dtype {array.dtype}, not {tensor.dtype}")
        if not self._fits(array.shape, tensor):
            raise InvalidInput(
                f"{called(name)} has shape {list(array.shape)}; {self._expected(tensor.shape)}"
            )

    def _expected(self, shape: Sequence[int]) -> str:
        return f"{list(shape)} is expected: one row has the shape {list(shape[1:])}"

    def _fits(self, shape: Sequence[int], tensor: Tensor) -> bool:
        return _fits(shape, tensor)

    def _concatenated(
        self, values: list[Value], padded_rows: int
    ) -> "dict[str, numpy.ndarray[Any, Any]]":
        batch = {}
        full = self._full_length(values)
        for name in values[0]:
            arrays = [value[name] for value in values]
            if full is not None:
                arrays = [self._filled(name, array, full) for array in arrays]
            missing = padded_rows - sum(len(array) for array in arrays)
            if missing:  # a fixed batch size: rows that are dropped again
                arrays.append(self._numpy.repeat(arrays[-1][-1:], missing, axis=0))
            batch[name] = self._concatenate(arrays) if len(arrays) > 1 else self._lone(*arrays)
            if self._is_here and arrays[0].dtype.hasobject:
                batch[name] = own(batch[name])
        return batch

    def _full_length(self, values: list[Value]) -> int | None:
        """The length that all values are padded to; None: they are not padded."""
        lengths = [self._length(value) for value in values]
        known = [length for length in lengths if length is not None]
        return self.varying.full_length(max(known)) if len(known) == len(lengths) else None

    def _filled(
        self, name: str, array: "numpy.ndarray[Any, Any]", full: int
    ) -> "numpy.ndarray[Any, Any]":
        padding = self.varying.padding
        if padding is None or name not in padding.values or array.shape[1] == full:
            return array
        rows, length, *rest = array.shape
        filled = self._numpy.full((rows, full, *rest), padding.values[name], array.dtype)
        filled[:, :length] = array
        return filled

    def _lone(self, array: "numpy.ndarray[Any, Any]") -> "numpy.ndarray[Any, Any]":
        """The array of a single caller: copied for a model that writes, else read-only."""
        if not self._is_here:
            return array
        if self._writes_inputs:
            return array.copy()
        array = array.view()
        array.flags.writeable = False
        return array

    def _split(self, outputs: Any, values: list[Value]) -> list[Any]:
        results, start = [], 0
        full = self._full_length(values)
        for value in values:
            stop = start + len(next(iter(value.values())))
            result = self.cut(outputs, start, stop)
            results.append(result if full is None else self._cut_back(result, value, full))
            start = stop
        return results

    def _cut_back(self, result: Value, value: Value, full: int) -> Value:
        padding, length = self.varying.padding, self._length(value)
        assert padding is not None
        assert length is not None
        return {name: padding.cut_back(name, array, length, full) for name, array in result.items()}

    def _check_outputs(self, outputs: Any, rows: int) -> None:
        self._check_names_of(outputs)
        for name, array in outputs.items():
            if not getattr(array, "ndim", 0) or len(array) != rows:
                raise BrokenContract(
                    f"{self.name} returned {name!r} with shape {list(getattr(array, 'shape', ()))} "
                    f"for {rows} rows"
                )
            self._check_declared(name, array)

    def _check_declared(self, name: str, array: Any) -> None:
        declared = self._outputs.get(name)
        if declared is not None and (mistake := declared.mistake(array)) is not None:
            raise BrokenContract(f"{self.name} returned {name!r} {mistake}")

    def _check_names_of(self, outputs: Any) -> None:
        if not isinstance(outputs, Mapping) or not outputs:
            raise BrokenContract(
                f"{self.name} returned {type(outputs).__name__}; named arrays were expected"
            )
        if self._outputs and self._outputs.keys() != outputs.keys():
            raise BrokenContract(
                f"{self.name} returned outputs {sorted(outputs)}, not {sorted(self._outputs)}"
            )


class BrokenContract(ModelFailed):
    """The model answered with the wrong number or kind of results: no item is to blame. For the
    runtime, which does not run such a batch again; callers get ModelFailed with its words."""


def _declared(model: TensorModel) -> "dict[str, DeclaredOutput]":
    from headway.runtime.calling.declared import DeclaredOutput  # it needs numpy

    is_sure = not model.output_shapes_are_hints
    return {
        tensor.name: DeclaredOutput(tensor, has_rows=model.batch_axis, is_shape_sure=is_sure)
        for tensor in model.outputs
    }


def is_async_function(function: Callable[..., Any]) -> bool:
    if isinstance(function, functools.partial):
        return is_async_function(function.func)
    if not inspect.isroutine(function):  # an object with `async def __call__`
        function = type(function).__call__
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _padded(values: list[Value], padded_rows: int) -> list[Value]:
    missing = padded_rows - len(values)
    return values + values[-1:] * missing if missing else values


def _fits(shape: Sequence[int], tensor: Tensor) -> bool:
    if len(shape) != len(tensor.shape):
        return False
    # the first axis is the rows: they always vary
    return all(want in (-1, have) for have, want in zip(shape[1:], tensor.shape[1:], strict=True))


class WholeRunner(TensorRunner):
    """A `headway.TensorModel` without a batch axis: one request's arrays, as they came."""

    def __init__(self, model: TensorModel, *, name: str) -> None:
        super().__init__(model, name=name)
        self.varying = Varying()
        self.row_dependence.is_alone = True
        self.is_uniform = False

    def shape(self, value: Value) -> tuple[int, int, Hashable]:
        if not isinstance(value, Mapping) or not value:
            raise InvalidInput(f"{self.name} takes named arrays, e.g. {{'x': array}}")
        self._check_names(value)
        for name, array in value.items():
            self._check(name, array)
        if self.checks_inputs:
            self._check_inputs(value)
        return 1, sum(array.size for array in value.values()), None

    def cut(self, value: Value, start: int, stop: int) -> Value:
        raise AssertionError("a request without rows is never cut")

    def join(self, results: list[Value]) -> Value:
        raise AssertionError("a request without rows is never joined")

    def _expected(self, shape: Sequence[int]) -> str:
        return f"{list(shape)} is expected"

    def _fits(self, shape: Sequence[int], tensor: Tensor) -> bool:
        wanted = tensor.shape
        is_alike = len(shape) == len(wanted)
        return is_alike and all(w in (-1, h) for h, w in zip(shape, wanted, strict=True))
