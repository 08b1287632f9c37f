"""How a model without a batch axis is called: with one request's arrays, as they came."""

from collections.abc import Awaitable, Hashable, Mapping, Sequence
from typing import Any

from headway.errors import InvalidInput
from headway.model import Tensor, TensorModel
from headway.runtime.calling.owning import own, own_outputs
from headway.runtime.calling.runner import BrokenContract, TensorRunner, Value
from headway.runtime.calling.varying import Varying


class WholeRunner(TensorRunner):
    """A `headway.TensorModel` without a batch axis: one request's arrays, as they came."""

    def __init__(self, model: TensorModel, *, name: str) -> None:
        super().__init__(model, name=name)
        self.varying = Varying()
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

    def join(self, results: list[Any]) -> Any:
        raise AssertionError("a request without rows is never joined")

    def to_compare(self, values: list[Value]) -> tuple[int, Value] | None:
        return None

    def predict(self, values: list[Value], padded_rows: int) -> list[Any]:
        return [self._answer(self._predict(self._own(value))) for value in values]

    async def predict_async(self, values: list[Value], padded_rows: int) -> list[Any]:
        results = []
        for value in values:
            outputs: Any = self._predict(self._own(value))
            if isinstance(outputs, Awaitable):
                outputs = await outputs
            results.append(self._answer(outputs))
        return results

    def _own(self, value: Value) -> Value:
        if not (self._writes_inputs and self._is_here):
            return dict(value)
        return {name: own(array) for name, array in value.items()}

    def _answer(self, outputs: Any) -> Any:
        if not isinstance(outputs, Mapping) or not outputs:
            raise BrokenContract(
                f"{self.name} returned {type(outputs).__name__}; named arrays were expected"
            )
        if self._outputs and self._outputs != outputs.keys():
            raise BrokenContract(
                f"{self.name} returned outputs {sorted(outputs)}, not {sorted(self._outputs)}"
            )
        arrays = {name: self._numpy.asarray(array) for name, array in outputs.items()}
        return own_outputs(arrays) if self._is_here else arrays

    def _fits(self, shape: Sequence[int], tensor: Tensor) -> bool:
        wanted = tensor.shape
        is_alike = len(shape) == len(wanted)
        return is_alike and all(w in (-1, h) for h, w in zip(shape, wanted, strict=True))
