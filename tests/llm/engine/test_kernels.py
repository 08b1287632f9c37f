"""Triton kernels against their plain twins. On a GPU, or anywhere with TRITON_INTERPRET=1."""

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="no Triton here: the kernels are not tested")
if not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"):
    pytest.skip("neither a GPU nor TRITON_INTERPRET=1", allow_module_level=True)

import reference_kernels as reference  # noqa: E402

from headway.core.generation.step import Decode, Placed, Prefill, Step  # noqa: E402
from headway.engine.adapters.peft import LowRank  # noqa: E402
from headway.engine.architecture import LlamaSpec  # noqa: E402
from headway.engine.gpu.kernels.activation import silu_and_multiply  # noqa: E402
from headway.engine.gpu.kernels.adapters import (  # noqa: E402
    Matrices,
    expand,
    group_rows,
    parts_for,
    shrink,
)
from headway.engine.gpu.kernels.decode import decode_attention  # noqa: E402
from headway.engine.gpu.kernels.eight_bit import (  # noqa: E402
    multiply_few,
    quantise_rows,
    quantised,
)
from headway.engine.gpu.kernels.norm import rms_norm  # noqa: E402
from headway.engine.gpu.kernels.prefill import prefill_attention  # noqa: E402
from headway.engine.gpu.kernels.rotary import rotate_and_store  # noqa: E402
from headway.engine.gpu.steps.adapters import AdaptedRows, DeviceAdapters  # noqa: E402
from headway.engine.gpu.steps.decoder import GpuDecoder  # noqa: E402
from headway.engine.gpu.tuning import DecodeTiles, PromptTiles, Tiles  # noqa: E402

# Triton's interpreter works with numpy before 2.4, which warns; and what only fills a step is
# computed from memory as it was found.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
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
        queries,
        keys,
        values,
        tables,
        slots,
        lengths,
        DIM**-0.5,
        splits=splits,
        tiles=DecodeTiles(16),
    )
    assert error(found, wanted) < 1e-5


def test_prompts_attend_to_what_came_before(cache) -> None:  # type: ignore[no-untyped-def]
    keys, values, tables = cache
    starts, lengths, slots = ints(0, 1, 12, 49, 89), ints(1, 16, 37, 100), ints(2, 0, 3, 1)
    queries = torch.randn(89, HEADS, DIM, device=DEVICE)
    given = (queries, keys, values, tables, slots, starts, lengths, DIM**-0.5)
    assert (
        error(prefill_attention(*given, tiles=PromptTiles(32, 16)), reference.attention(*given))
        < 1e-5
    )


@pytest.mark.parametrize("adds", [False, True])
def test_norms_are_of_what_is_kept(adds: bool) -> None:
    torch.manual_seed(4)
    x, weight = torch.randn(3, 100, device=DEVICE), torch.randn(100, device=DEVICE)
    kept = torch.randn(3, 100, device=DEVICE) if adds else None
    twin = kept.clone() if kept is not None else None
    found = rms_norm(x, weight, 1e-5, kept)
    assert error(found, reference.rms_norm(x, weight, 1e-5, twin)) < 1e-6
    if kept is not None and twin is not None:
        assert error(kept, twin) < 1e-6


@pytest.mark.parametrize("has_norms", [False, True])
def test_queries_and_keys_are_turned_and_stored(has_norms: bool) -> None:
    torch.manual_seed(5)
    qkv = torch.randn(5, (HEADS + 2 * KEY_HEADS) * DIM, device=DEVICE)
    cosines, sines = torch.randn(2, 50, DIM // 2, device=DEVICE)
    norms = torch.randn(2, DIM, device=DEVICE)
    given = (qkv, cosines, sines, ints(0, 49, 7, 7, 1), ints(3, 17, -1, 639, 40))
    made = []
    for turn in (rotate_and_store, reference.rotate_and_store):
        cache = torch.zeros(2, PAGES, KEY_HEADS, PAGE, DIM, device=DEVICE)
        pair = (norms[0], norms[1]) if has_norms else None
        queries = turn(*given, cache[0], cache[1], HEADS, pair, 1e-5)
        made.append((queries, cache))
    (queries, cache), (wanted_queries, wanted_cache) = made
    assert error(queries, wanted_queries) < 1e-6
    assert error(cache, wanted_cache) < 1e-6


def test_gates_are_multiplied_with_what_they_let_through() -> None:
    gate_up = torch.randn(3, 2 * 1500, device=DEVICE)
    wanted = reference.silu_and_multiply(gate_up)
    assert error(silu_and_multiply(gate_up), wanted) < 1e-6


@pytest.mark.parametrize("rows", [1, 21, 70])
def test_each_row_has_its_own_adapter(rows: int) -> None:
    torch.manual_seed(1)
    slots, inner, rank, width = 3, 192, 16, 384
    x, out = torch.randn(rows, inner, device=DEVICE), torch.randn(rows, width, device=DEVICE)
    adapters = torch.randint(-1, slots, (rows,), device=DEVICE).int()
    # Slots lie apart, with other things between.
    memory = torch.randn(slots, 2 * (3 * rank * inner + width * rank), device=DEVICE) * 0.1
    downs = memory[:, : 3 * rank * inner].unflatten(1, (3 * rank, inner))
    ups = memory[:, -width * rank :].unflatten(1, (width, rank))
    wanted = out.clone()
    for row, adapter in enumerate(adapters.tolist()):
        if adapter >= 0:
            small = (x[row] @ downs[adapter].T).view(3, rank)
            wanted[row] += torch.einsum(
                "pr,pwr->pw", small, ups[adapter].view(3, 128, rank)
            ).flatten()
    matrices = Matrices(downs, ups, (128, 256, 384))
    groups = group_rows(adapters, slots)
    parts = parts_for(x, matrices, 4)
    shrink(x, matrices, groups, parts)
    expand(parts, matrices, groups, out, block=128)
    assert error(out, wanted) < 1e-5


SPEC = LlamaSpec.of(
    {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 50,
        "tie_word_embeddings": True,
    }
)


def weights_of(seed: int, ranks: dict[str, int]) -> "dict[str, LowRank]":
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for layer in range(2):
        for product in SPEC.products(layer).values():
            for module, (inner, width) in product.items():
                rank = ranks.get(module.rpartition(".")[2])
                if rank:
                    down = torch.randn(rank, inner, generator=generator) * 0.2
                    found[module] = LowRank(down, torch.randn(width, rank, generator=generator))
    return found


def tensors(change: "dict[str, LowRank]") -> "list[tuple[str, torch.Tensor]]":
    generator = torch.Generator().manual_seed(0)
    found = [("model.embed_tokens.weight", torch.randn(50, 64, generator=generator))]
    for layer in range(2):
        for product in SPEC.products(layer).values():
            for module, (inner, width) in product.items():
                weight = torch.randn(width, inner, generator=generator) * 0.2
                if module in change:
                    weight = weight + change[module].up @ change[module].down
                found.append((f"{module}.weight", weight))
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found.append((f"model.layers.{layer}.{norm}.weight", torch.ones(64)))
    return [*found, ("model.norm.weight", torch.ones(64))]


def states_of(change: "dict[str, LowRank]", adapt: "AdaptedRows | None") -> "torch.Tensor":
    decoder = GpuDecoder(
        SPEC, iter(tensors(change)), dtype=torch.float32, device=DEVICE, max_context=64
    )
    cache = [torch.zeros(4, 2, 16, 16, device=DEVICE) for _ in range(2)]
    ids = torch.arange(3, 12, device=DEVICE)
    places = torch.arange(9, dtype=torch.int32, device=DEVICE)

    def attend(queries: "torch.Tensor", keys: object, values: object) -> "torch.Tensor":
        return queries  # it is the same with and without adapters

    return decoder.hidden(ids, places, places, (cache, cache), attend, adapt)


def test_a_decoders_rows_have_the_adapters_that_a_step_has_placed() -> None:
    adapters = DeviceAdapters(
        SPEC, slots=2, sequences=4, max_rank=16, dtype=torch.float32, device=DEVICE
    )
    weights = {
        "all": weights_of(1, {name.rpartition(".")[2]: 5 for name in adapters.adaptable}),
        "some": weights_of(2, {"q_proj": 16, "v_proj": 3, "down_proj": 2}),
    }
    for name, each in weights.items():
        adapters.add(name, adapters.packed(each))
    parts = tuple(
        Prefill(slot, slot, 0, (1,), (slot,), True, True, adapter)
        for slot, adapter in enumerate((-1, 1, 0))
    )
    placed = (Placed(1, "all"), Placed(0, "some"))
    assert adapters.begin(Step(1, (), parts, (), (), placed))
    slots = ints(0, 1, 2, 2, 1, 0, 4, 1, 0)  # the 5th only fills a graph's batch
    mixed = states_of({}, adapters.for_rows(slots))
    alone = {1: states_of(weights["all"], None), 2: states_of(weights["some"], None)}
    plain = states_of({}, None)
    for row, slot in enumerate(slots.tolist()):
        assert error(mixed[row], alone.get(slot, plain)[row]) < 1e-4
    assert not adapters.begin(Step(2, (Decode(0, 0, 1, ()),), (), (), ()))


def test_rows_of_8_bits_are_what_they_were_but_for_their_last_bits() -> None:
    torch.manual_seed(3)
    x = torch.randn(5, 200, device=DEVICE) * ints(1, 10, 100, 1000, 0)[:, None]
    small, scales = quantise_rows(x)
    back = small.float() * scales
    assert not back[4].any()
    # Triton's interpreter loses a carry where rounding goes up to the next power of two.
    off = (back - x).abs() > 2**-4 * x.abs() + scales * 2**-9
    assert float(off.float().mean()) < (0.0 if DEVICE == "cuda" else 0.1) + 1e-9


@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_weights_of_8_bits_multiply_as_their_numbers_say(splits: int, rows: int) -> None:
    torch.manual_seed(2)
    weight, scales = quantised(torch.randn(100, 300, device=DEVICE))
    x, x_scales = quantise_rows(torch.randn(rows, 300, device=DEVICE))
    wanted = (x.float() * x_scales) @ (weight.float() * scales[:, None]).T
    tiles = Tiles(columns=64, block=64, splits=splits)
    found = multiply_few(x, x_scales, weight, scales, torch.float32, tiles)
    assert error(found, wanted) < 2e-3
