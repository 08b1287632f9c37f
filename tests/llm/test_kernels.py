"""Triton kernels against their plain twins. On a GPU, or anywhere with TRITON_INTERPRET=1."""

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="no Triton here: the kernels are not tested")
if not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"):
    pytest.skip("neither a GPU nor TRITON_INTERPRET=1", allow_module_level=True)

from headway.engine.gpu.kernels import reference  # noqa: E402
from headway.engine.gpu.kernels.adapters import add_adapters, group_rows  # noqa: E402
from headway.engine.gpu.kernels.decode import decode_attention  # noqa: E402
from headway.engine.gpu.kernels.eight_bit import multiply, quantised  # noqa: E402
from headway.engine.gpu.kernels.prefill import prefill_attention  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, KEY_HEADS, DIM, PAGE, PAGES = 8, 2, 32, 16, 40


def ints(*values: int) -> "torch.Tensor":
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def error(found: "torch.Tensor", wanted: "torch.Tensor") -> float:
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


@pytest.fixture
def cache() -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    torch.manual_seed(0)
    keys, values = torch.randn(2, PAGES, KEY_HEADS, PAGE, DIM, device=DEVICE)
    return keys, values, torch.randperm(PAGES, device=DEVICE)[:28].view(4, 7).int()


@pytest.mark.parametrize("splits", [1, 2, 5])
def test_decodes_attend_to_their_own_pages(cache, splits) -> None:  # type: ignore[no-untyped-def]
    keys, values, tables = cache
    queries = torch.randn(4, HEADS, DIM, device=DEVICE)
    slots, lengths = ints(2, 0, 3, 1), ints(1, 16, 37, 100)
    wanted = reference.attention(
        queries, keys, values, tables, slots, ints(0, 1, 2, 3, 4), lengths, DIM**-0.5
    )
    found = decode_attention(
        queries, keys, values, tables, slots, lengths, DIM**-0.5, splits=splits, block=16
    )
    assert error(found, wanted) < 1e-5


def test_prompts_attend_to_what_came_before(cache) -> None:  # type: ignore[no-untyped-def]
    keys, values, tables = cache
    starts, lengths, slots = ints(0, 1, 12, 49, 89), ints(1, 16, 37, 100), ints(2, 0, 3, 1)
    queries = torch.randn(89, HEADS, DIM, device=DEVICE)
    given = (queries, keys, values, tables, slots, starts, lengths, DIM**-0.5)
    assert error(prefill_attention(*given, rows=32, block=16), reference.attention(*given)) < 1e-5


def test_each_row_has_its_own_adapter() -> None:
    torch.manual_seed(1)
    rows, inner, rank, width = 21, 192, 16, 384
    x, out = torch.randn(rows, inner, device=DEVICE), torch.randn(rows, width, device=DEVICE)
    adapters = torch.randint(-1, 3, (rows,), device=DEVICE).int()
    downs = torch.randn(3, 3 * rank, inner, device=DEVICE) * 0.1
    ups = torch.randn(3, width, rank, device=DEVICE) * 0.1
    wanted = out.clone()
    for row, adapter in enumerate(adapters.tolist()):
        if adapter >= 0:
            small = (x[row] @ downs[adapter].T).view(3, rank)
            wanted[row] += torch.einsum(
                "pr,pwr->pw", small, ups[adapter].view(3, 128, rank)
            ).flatten()
    order, starts = group_rows(adapters, 3)
    add_adapters(x, out, downs, ups, (128, 256, 384), order, starts, splits=4)
    assert error(out, wanted) < 1e-5


@pytest.mark.parametrize("splits", [1, 2])
def test_weights_of_8_bits_multiply_as_their_numbers_say(splits: int) -> None:
    torch.manual_seed(2)
    weight, scales = quantised(torch.randn(100, 256, device=DEVICE))
    x = torch.randn(5, 256, device=DEVICE)
    wanted = x @ (weight.float() * scales[:, None]).T
    assert error(multiply(x, weight, scales, splits=splits), wanted) < 2e-3  # tf32 on a GPU
