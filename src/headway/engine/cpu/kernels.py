"""The kernels in C as functions of tensors: rows of float32 that lie one after another."""

import ctypes
from typing import Any, NamedTuple

import torch

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
_ARGUMENTS = {
    "multiply": [*[_POINTER] * 4, *[_LONG] * 3, _INT, _LONG],
    "normalize": [*[_POINTER] * 3, _LONG, _LONG, _FLOAT, _LONG],
    "round_to_bf16": [*[_POINTER] * 2, _LONG, _LONG, _LONG],
    "gate": [*[_POINTER] * 2, _LONG, _LONG, _LONG],
    "rotate": [*[_POINTER] * 2, *[_LONG] * 4, _LONG],
    "write_rows": [*[_POINTER] * 5, *[_LONG] * 4],
    "run_layers": [_POINTER, _POINTER, _LONG],
    "attend": [*[_POINTER] * 8, *[_LONG] * 8, _FLOAT, _LONG],
}
_KINDS = {torch.float16: 0, torch.bfloat16: 1, torch.int8: 2}  # of weights, widened to float32
_BF16_PAIRS = 3  # bf16 weights that the processor multiplies by rows of bf16
_AVX512_LANES = 16
_CACHE_DTYPES = {4: torch.float32, 2: torch.bfloat16}
_ROWS = "rows of float32 are expected"


class Panels(NamedTuple):
    """Weights as the kernels take them: some outputs at a time, the last filled up with zeros."""

    data: torch.Tensor
    kind: int
    outputs: int  # with those that are filled up
    inputs: int

    @property
    def takes_bf16(self) -> bool:
        """Whether rows are rounded to bf16 before they are multiplied."""
        return self.kind == _BF16_PAIRS


class Kernels:
    def __init__(self, library: ctypes.CDLL) -> None:
        functions = {name: _function(library, name) for name in _ARGUMENTS}
        self._multiply, self._normalize = functions["multiply"], functions["normalize"]
        self._round_to_bf16 = functions["round_to_bf16"]
        self._gate, self._rotate = functions["gate"], functions["rotate"]
        self._write, self._attend = functions["write_rows"], functions["attend"]
        self.run_layers = functions["run_layers"]  # see LayersAtOnce
        self._lanes = _constant(library, "lanes")  # floats that are computed together
        self._panel_width = _constant(library, "panel_width")
        self._most_page = _constant(library, "most_page")  # tokens
        self._most_features = _constant(library, "most_features")
        self.cache_dtype = _CACHE_DTYPES[_constant(library, "cell_bytes")]

    def panels(self, weight: torch.Tensor) -> Panels:
        """The panels of `[out, in]` weights of 16 or 8 bits."""
        weight = _filled_up(weight, self._panel_width)
        outputs, inputs = weight.shape
        is_bf16 = weight.dtype == self.cache_dtype == torch.bfloat16
        data = weight.view(outputs // self._panel_width, self._panel_width, inputs)
        kind = _KINDS[weight.dtype]
        if is_bf16 and self._lanes == _AVX512_LANES and self.is_whole(inputs):
            data, kind = data.unflatten(2, (inputs // 2, 2)), _BF16_PAIRS
        return Panels(data.transpose(1, 2).contiguous(), kind, outputs, inputs)

    @property
    def instructions(self) -> str:
        return "AVX-512" if self._lanes == _AVX512_LANES else "AVX2"

    def is_whole(self, width: int) -> bool:
        """Are rows of this width among what the kernels compute?"""
        return not width % self._lanes

    def multiply(
        self, x: torch.Tensor, panels: Panels, scales: torch.Tensor | None
    ) -> torch.Tensor:
        """Multiply rows by weights, of 16 bits, or of 8 with a scale for each output."""
        _fits(x.shape[-1] == panels.inputs > 0, "a row has another width than the weights")
        _fits(x.dtype == torch.float32 and x.dim() == 2, _ROWS)
        if scales is not None or panels.data.dtype == torch.int8:
            is_one_each = scales is not None and scales.shape == (panels.outputs,)
            _fits(is_one_each, "a scale is expected for each output")
        x = self._rounded(x) if panels.takes_bf16 else x.contiguous()
        y = torch.empty((len(x), panels.outputs), dtype=torch.float32)
        self._multiply(
            panels.data.data_ptr(),
            None if scales is None else scales.data_ptr(),
            x.data_ptr(),
            y.data_ptr(),
            len(x),
            panels.outputs,
            panels.inputs,
            panels.kind,
            torch.get_num_threads(),
        )
        return y

    def _rounded(self, x: torch.Tensor) -> torch.Tensor:
        """Convert to bf16, rounding as torch does, except that subnormal numbers become zero."""
        x = x.contiguous()
        y = torch.empty_like(x, dtype=torch.bfloat16)
        self._round_to_bf16(x.data_ptr(), y.data_ptr(), *x.shape, torch.get_num_threads())
        return y

    def normalize(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """RMS norm of each row."""
        _fits(x.dtype == weight.dtype == torch.float32, _ROWS)
        x = x.contiguous()
        y = torch.empty_like(x)
        width = x.shape[-1]
        _fits(weight.numel() == width, "a norm has another width than the rows")
        self._check(width)
        self._normalize(
            *_pointers(x, weight, y), x.numel() // width, width, epsilon, torch.get_num_threads()
        )
        return y

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) × up, the two halves of each row."""
        rows, both = gate_up.shape
        self._check(both // 2)
        _fits(gate_up.dtype == torch.float32 and not both % 2, _ROWS)
        gate_up = gate_up.contiguous()
        y = torch.empty((rows, both // 2), dtype=torch.float32)
        threads = torch.get_num_threads()
        self._gate(gate_up.data_ptr(), y.data_ptr(), rows, both // 2, threads)
        return y

    def rotate(self, heads: torch.Tensor, count: int, by: torch.Tensor) -> None:
        """Rotate the first heads of each token, in place: `[token, head, feature]`."""
        rows, there, features = heads.shape
        _fits(there >= count, "there are fewer heads than the configuration says")
        self._check(features)
        _fits(heads.dtype == torch.float32 and heads.stride()[1:] == (features, 1), _ROWS)
        is_one_each = by.dtype == torch.complex64 and by.numel() == rows * features // 2
        _fits(is_one_each, "a rotation is expected for each row")
        self._rotate(
            *_pointers(heads, by), rows, count, features, heads.stride(0), torch.get_num_threads()
        )

    def write(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        key_pages: torch.Tensor,
        value_pages: torch.Tensor,
        places: torch.Tensor,
    ) -> None:
        """Write each token's `[head, feature]` to its place: page number × page size + position."""
        rows, heads, features = keys.shape
        is_alike = keys.shape == values.shape and key_pages.shape == value_pages.shape
        _fits(is_alike, "keys and values have other sizes")
        _fits(key_pages.shape[2:] == (heads, features), "a token has other heads than a page")
        self._check(features)
        _fits(keys.dtype == values.dtype == torch.float32, _ROWS)
        is_cache = key_pages.dtype == value_pages.dtype == self.cache_dtype
        _fits(is_cache, "the pages are not of the kernels' dtype")
        _fits(
            places.dtype == torch.int64 and len(places) == rows, "a place is expected for each row"
        )
        if keys.stride() != values.stride() or keys.stride()[1:] != (features, 1):
            keys, values = keys.contiguous(), values.contiguous()
        self._write(
            *_pointers(keys, values, key_pages, value_pages, places),
            rows,
            heads * features,
            keys.stride(0),
            torch.get_num_threads(),
        )

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        tables: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        runs: torch.Tensor,
        decodes: int,
        out: torch.Tensor,
        scale: float,
    ) -> None:
        """Rows of queries `[head, feature]` over pages `[page, token, head, feature]` of their
        slots' tables, into `out`. `runs`: where rows begin that follow each other in one
        sequence, and where the last of them ends; rows before the first are left alone. The
        first `decodes` rows are decodes, each a run; a row's numbers are the same either way."""
        if queries.stride()[1:] != (queries.shape[-1], 1):
            queries = queries.contiguous()
        _, heads, features = queries.shape
        _, page, kv_heads, _ = keys.shape
        _fits(not heads % kv_heads, "the heads are no multiple of the heads of keys")
        is_alike = keys.shape == values.shape and keys.dtype == values.dtype
        _fits(self.attends(keys) and is_alike, "pages like these are not among the kernels")
        _fits(keys.is_contiguous() and values.is_contiguous(), "pages lie one after another")
        is_alike = out.shape == queries.shape and out.is_contiguous() and keys.shape[3] == features
        _fits(queries.dtype == out.dtype == torch.float32 and is_alike, _ROWS)
        numbers = (tables, slots, positions, runs)
        are_int64 = all(each.dtype == torch.int64 and each.is_contiguous() for each in numbers)
        is_one_each = len(slots) == len(positions) == len(queries)
        _fits(are_int64 and is_one_each, "a slot and a position are expected for each row")
        self._attend(
            *_pointers(queries, keys, values, tables, slots, positions, runs, out),
            len(runs) - 1,
            decodes,
            kv_heads,
            heads // kv_heads,
            features,
            page,
            queries.stride(0),
            tables.shape[1],
            scale,
            torch.get_num_threads(),
        )

    def attends(self, keys: torch.Tensor) -> bool:
        """Is attention over pages of this kind and these sizes among the kernels?"""
        _, page, _, features = keys.shape
        has_room = 0 < page <= self._most_page and not page % 4
        is_known = features <= self._most_features and self.is_whole(features)
        return keys.dtype == self.cache_dtype and has_room and is_known

    def _check(self, width: int) -> None:
        _fits(self.is_whole(width), "rows of this width are not among the kernels")


def _filled_up(weight: torch.Tensor, width: int) -> torch.Tensor:
    """The weight with outputs of zeros added, up to a multiple of `width`."""
    missing = -len(weight) % width
    return torch.cat([weight, weight.new_zeros(missing, weight.shape[1])]) if missing else weight


def _fits(does: bool, wrong: str) -> None:
    """A kernel would read and write beyond what it is given, where torch raises."""
    if not does:
        raise ValueError(wrong)


def _pointers(*tensors: torch.Tensor) -> list[int]:
    return [each.data_ptr() for each in tensors]


def _constant(library: ctypes.CDLL, name: str) -> int:
    return ctypes.c_int.in_dll(library, name).value


def _function(library: ctypes.CDLL, name: str) -> Any:
    function = getattr(library, name)
    function.argtypes = _ARGUMENTS[name]
    function.restype = None
    return function
