"""How a model without a batch axis is called: with one request's arrays, as they came."""

from collections.abc import Hashable, Mapping, Sequence

from headway.errors import InvalidInput
from headway.model import Tensor, TensorModel
from headway.runtime.calling.runner import TensorRunner, Value
from headway.runtime.calling.varying import Varying


class WholeRunner(TensorRunner):
    """A `headway.TensorModel` without a batch axis: one request's arrays, as they came."""

    def __init__(self, model: TensorModel, *, name: str) -> None:
        super().__init__(model, name=name)
        self.varying = Varying()
        self.company.is_alone = True
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

    def _fits(self, shape: Sequence[int], tensor: Tensor) -> bool:
        wanted = tensor.shape
        is_alike = len(shape) == len(wanted)
        return is_alike and all(w in (-1, h) for h, w in zip(shape, wanted, strict=True))
