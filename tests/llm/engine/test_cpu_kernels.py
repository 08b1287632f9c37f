"""The CPU's kernels against their plain torch twins, and where they are not to be had."""

import logging
import math
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from models import KERNEL_KINDS, VOCABULARY, Engine, build, kernels_of

from headway.engine.cpu import building
from headway.engine.cpu.building import AVX512, compiled, instruction_sets
from headway.engine.cpu.kernels import Kernels
from headway.engine.cpu.linear import HalfLinear, PanelLinear, PlainLinear, linear, rounded
from headway.engine.rotary import rotate
from headway.engine.starting import EngineOptions, start
from headway.errors import ConfigError
from headway.files import trusted_folder

ROWS = (1, 2, 3, 4, 5, 6, 7, 13, 97, 200)
has_kernels = pytest.mark.skipif(
    compiled(torch.float32) is None, reason="no compiler, or another processor"
)


@pytest.fixture(params=KERNEL_KINDS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return kernels_of(request.param)


@pytest.fixture
def two_threads() -> object:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@has_kernels
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("inputs", [8, 16, 512, 1100, 1536])
def test_a_product_is_that_of_the_wide_weights_and_a_row_of_it_the_same_in_any_company(
    kernels: Kernels, two_threads: None, inputs: int, dtype: torch.dtype
) -> None:
    weight, scales = torch.randn(11 * 16, inputs) / math.sqrt(inputs), None
    if dtype == torch.int8:
        weight, scales = rounded(weight)
    weight = weight.to(dtype)
    wide = weight.double() if scales is None else weight.double() * scales[:, None]
    panels = kernels.panels(weight)
    all_rows = torch.randn(max(ROWS), inputs)
    whole = kernels.multiply(all_rows, panels, scales)
    taken = all_rows.bfloat16() if panels.takes_bf16 else all_rows
    assert torch.allclose(whole.double(), taken.double() @ wide.t(), atol=1e-5)
    for rows in ROWS:
        some = kernels.multiply(all_rows[:rows], panels, scales)
        assert torch.equal(some, whole[:rows])


@has_kernels
@pytest.mark.skipif(AVX512 not in instruction_sets(), reason="this processor has no AVX-512")
def test_rows_are_rounded_to_bf16_where_the_processor_multiplies_it_and_nowhere_else() -> None:
    weight = torch.randn(16, 64).bfloat16()
    for dtype in (torch.float32, torch.bfloat16):
        kernels = compiled(dtype)
        assert kernels is not None
        assert kernels.panels(weight).takes_bf16 == (dtype == torch.bfloat16)
        assert not kernels.panels(weight.half()).takes_bf16


@has_kernels
def test_norm_gate_and_rotation_are_torchs(kernels: Kernels, two_threads: None) -> None:
    for rows in (1, 3, 700):
        x, weight = torch.randn(rows, 80), torch.randn(80)
        expected = F.rms_norm(x, (80,), weight, 1e-5)
        assert torch.allclose(kernels.normalize(x, weight, 1e-5), expected, atol=1e-5)
        both = torch.cat([torch.randn(rows, 80) * 40, torch.randn(rows, 80)], 1)
        expected = F.silu(both[:, :80]) * both[:, 80:]
        assert torch.allclose(kernels.gate(both), expected, atol=1e-5)
        heads, angles = torch.randn(rows, 5, 16), torch.randn(rows, 8)
        by = torch.polar(torch.ones_like(angles), angles)
        expected = torch.cat([rotate(heads[:, :3], by[:, None]), heads[:, 3:]], 1)
        kernels.rotate(heads, 3, by)
        assert torch.allclose(heads, expected, atol=1e-6)


@has_kernels
@pytest.mark.parametrize("is_apart", [False, True])
def test_keys_and_values_are_written_to_their_places(
    kernels: Kernels, two_threads: None, is_apart: bool
) -> None:
    for rows in (1, 5, 2500):  # the last of them by two threads
        heads = torch.randn(rows, 10, 16)
        heads[0, 7, 3], heads[0, 8, 5] = torch.nan, torch.inf
        keys, values = heads[:, 6:8], heads[:, 8:]
        if is_apart:
            keys = keys.contiguous()
        pages = torch.zeros(2, 160, 16, 2, 16, dtype=kernels.cache_dtype)
        places = torch.randperm(2560)[:rows]
        expected = pages.clone().flatten(1, 2)
        expected[0, places], expected[1, places] = (
            x.to(kernels.cache_dtype) for x in (keys, values)
        )
        kernels.write(keys, values, *pages, places)
        assert torch.equal(pages.flatten(1, 2).nan_to_num(9.0), expected.nan_to_num(9.0))


def attended(
    kernels: Kernels,
    queries: torch.Tensor,
    cached: tuple[torch.Tensor, torch.Tensor],
    tables: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    *,
    runs: list[int],
    decodes: int = 0,
) -> torch.Tensor:
    out = torch.full(queries.shape, 7.0)
    where = slots, positions, torch.tensor(runs), decodes
    kernels.attend(queries, *cached, tables, *where, out, 0.3)
    return out


@has_kernels
@pytest.mark.parametrize("rows", [1, 2, 5, 40])
@pytest.mark.parametrize("decodes", [False, True])
@pytest.mark.parametrize(
    ("features", "group", "page"),
    [
        *((features, 3, 16) for features in (16, 64, 72, 80, 256)),
        *((64, group, 16) for group in (1, 2, 4, 5, 7)),
        *((64, 3, page) for page in (4, 12, 48, 128, 256)),
    ],
)
def test_attention_reads_pages_where_they_lie(
    kernels: Kernels,
    two_threads: None,
    features: int,
    group: int,
    page: int,
    rows: int,
    decodes: bool,
) -> None:
    """Rows of a sequence, at the beginning, across a page's end, and far on; as decodes, or in
    runs that are cut anywhere."""
    if not kernels.is_whole(features):
        assert not kernels.attends(torch.zeros(1, page, 2, features, dtype=kernels.cache_dtype))
        return
    starts = [0, 3, 11, 15, 100, 333]
    positions = torch.tensor([start + row for start in starts for row in range(rows)])
    pages = 400 // page + 1
    keys, values = torch.randn(2, 2 * pages, page, 2, features).to(kernels.cache_dtype)
    cached = keys, values
    tables = torch.stack([torch.randperm(2 * pages)[:pages] for _ in range(8)])
    slots = torch.tensor([7, 0, 3, 5, 1, 2]).repeat_interleave(rows)
    count = len(slots)
    # With keys and values behind them, as they come.
    queries = torch.randn(count, 2 * group + 4, features)[:, : 2 * group]
    assert kernels.attends(cached[0])
    runs = list(range(0, count + 1, 1 if decodes else rows))
    of_decodes = count if decodes else 0
    given = queries, cached, tables, slots, positions
    found = attended(kernels, *given, runs=runs, decodes=of_decodes)
    for index, (slot, position) in enumerate(zip(slots, positions.tolist(), strict=True)):
        context = (each[tables[slot]].flatten(0, 1)[: position + 1].float() for each in cached)
        wide = [each.repeat_interleave(group, 1).transpose(0, 1) for each in context]
        expected = F.scaled_dot_product_attention(queries[index][:, None], *wide, scale=0.3)
        assert torch.allclose(found[index], expected[:, 0], atol=3e-5)
        alone = slice(index, index + 1)
        own = queries[alone], cached, tables, slots[alone], positions[alone]
        for is_decode in (0, 1):
            again = attended(kernels, *own, runs=[0, 1], decodes=is_decode)
            assert torch.equal(again[0], found[index])


@has_kernels
def test_attention_leaves_rows_before_its_first_run_alone(kernels: Kernels) -> None:
    keys, values = torch.randn(2, 4, 16, 2, 16).to(kernels.cache_dtype)
    tables, slots = torch.tensor([[0, 1, 2, 3]]), torch.zeros(4, dtype=torch.int64)
    given = torch.randn(4, 2, 16), (keys, values), tables, slots, torch.arange(4)
    out = attended(kernels, *given, runs=[2, 4])
    assert (out[:2] == 7.0).all()
    assert (out[2:] != 7.0).all()


@has_kernels
@pytest.mark.parametrize(("heads", "kv_heads"), [(5, 2), (2, 3)])
def test_attention_refuses_heads_that_do_not_share_key_heads_evenly(
    kernels: Kernels, heads: int, kv_heads: int
) -> None:
    """Their results would lie in other rows' places, where torch raises."""
    keys, values = torch.randn(2, 4, 16, kv_heads, 16).to(kernels.cache_dtype)
    tables, slots = torch.tensor([[0, 1, 2, 3]]), torch.zeros(4, dtype=torch.int64)
    given = torch.randn(4, heads, 16), (keys, values), tables, slots, torch.arange(4)
    with pytest.raises(ValueError, match="no multiple of the heads of keys"):
        attended(kernels, *given, runs=[0, 4])


@has_kernels
def test_attention_reads_nothing_that_was_left_in_a_page(kernels: Kernels) -> None:
    """What another sequence left behind the end may be anything: it is not multiplied by zero."""
    keys, values = torch.randn(2, 2, 16, 1, 16).to(kernels.cache_dtype)
    keys[0, 6:], values[0, 6:] = torch.nan, torch.nan
    where = torch.tensor([[0, 1]]), torch.zeros(3, dtype=torch.int64), torch.tensor([3, 4, 5])
    given = torch.randn(3, 3, 16), (keys, values), *where
    assert attended(kernels, *given, runs=[0, 3]).isfinite().all()
    assert attended(kernels, *given, runs=[0, 1, 2, 3], decodes=3).isfinite().all()


@has_kernels
def test_what_does_not_fit_is_refused_and_nothing_is_read_beyond_it(kernels: Kernels) -> None:
    with pytest.raises(ValueError, match="another width than the weights"):
        kernels.multiply(torch.ones(1, 8), kernels.panels(torch.ones(16, 64).half()), None)
    with pytest.raises(ValueError, match="another width than the rows"):
        kernels.normalize(torch.ones(1, 72), torch.ones(64), 1e-5)
    with pytest.raises(ValueError, match="not among the kernels"):
        kernels.gate(torch.ones(1, 24))
    with pytest.raises(ValueError, match="a scale is expected"):
        kernels.multiply(torch.ones(1, 64), kernels.panels(torch.ones(16, 64).char()), None)
    with pytest.raises(ValueError, match="rows of float32"):
        kernels.multiply(torch.ones(64), kernels.panels(torch.ones(16, 64).half()), None)
    assert not kernels.attends(torch.ones(1, 0, 1, 16, dtype=kernels.cache_dtype))
    for dtype in (torch.bfloat16, torch.float64):
        row = torch.ones(1, 64, dtype=dtype)
        with pytest.raises(ValueError, match="rows of float32"):
            kernels.multiply(row, kernels.panels(torch.ones(16, 64).half()), None)
        with pytest.raises(ValueError, match="rows of float32"):
            kernels.normalize(row, torch.ones(64), 1e-5)
        with pytest.raises(ValueError, match="rows of float32"):
            kernels.gate(row)
    keys, places = torch.ones(1, 2, 16), torch.tensor([3])
    pages = torch.ones(2, 16, 2, 16, dtype=kernels.cache_dtype)
    with pytest.raises(ValueError, match="keys and values"):
        kernels.write(keys, torch.ones(1, 2, 4), pages, pages, places)
    with pytest.raises(ValueError, match="other heads"):
        kernels.write(keys[:, :1], keys[:, :1], pages, pages, places)
    with pytest.raises(ValueError, match="rows of float32"):
        kernels.write(keys.bfloat16(), keys.bfloat16(), pages, pages, places)
    with pytest.raises(ValueError, match="rows of float32"):
        attended(
            kernels,
            keys.bfloat16(),
            (pages, pages),
            places[None] * 0,
            places * 0,
            places * 0,
            runs=[0, 1],
        )
    with pytest.raises(ValueError, match="the kernels' dtype"):
        kernels.write(keys, keys, pages.double(), pages.double(), places)
    with pytest.raises(ValueError, match="a place is expected"):
        kernels.write(keys, keys, pages, pages, places[:0])
    with pytest.raises(ValueError, match="a rotation is expected"):
        kernels.rotate(torch.ones(2, 4, 16), 4, torch.ones(1, 8, dtype=torch.complex64))
    with pytest.raises(ValueError, match="fewer heads"):
        kernels.rotate(torch.ones(1, 4, 16), 6, torch.ones(1, 8, dtype=torch.complex64))


@has_kernels
def test_what_is_not_a_number_stays_so(kernels: Kernels) -> None:
    both = torch.full((1, 32), torch.nan)
    assert kernels.gate(both).isnan().all()


@has_kernels
def test_two_engines_of_a_process_compute_at_once(kernels: Kernels, two_threads: None) -> None:
    """The threads serve one of them; the other computes by itself."""
    weight = kernels.panels(torch.randn(512, 512).half())
    rows = [torch.randn(8, 512) for _ in range(4)]
    expected = [kernels.multiply(each, weight, None) for each in rows]
    found: list[bool] = []

    def work(index: int) -> None:
        for _ in range(100):
            same = torch.equal(kernels.multiply(rows[index], weight, None), expected[index])
            found.append(same)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [True] * 400


@has_kernels
def test_a_child_of_fork_has_threads_of_its_own(kernels: Kernels, two_threads: None) -> None:
    weight, x = kernels.panels(torch.randn(512, 512).half()), torch.randn(8, 512)
    expected = kernels.multiply(x, weight, None)
    child = os.fork()
    if not child:
        os._exit(0 if torch.equal(kernels.multiply(x, weight, None), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_weights_keep_their_16_bits_where_the_numbers_do(tmp_path: Path) -> None:
    weight = torch.randn(32, 48)
    short = linear(weight.bfloat16().float(), None, torch.float32, compiled(torch.float32))
    assert compiled(torch.float32) is None or isinstance(short, PanelLinear)
    assert isinstance(linear(weight, None, torch.float32, compiled(torch.float32)), PlainLinear)
    bias, x = torch.randn(32), torch.randn(3, 48)
    expected = F.linear(x, weight.half().float(), bias)
    assert torch.allclose(
        linear(weight.half(), bias, torch.float32, compiled(torch.float32))(x), expected, atol=1e-5
    )


@pytest.mark.skipif(not HalfLinear.runs(), reason="FBGEMM is not in this torch")
def test_without_the_kernels_weights_that_are_fp16_numbers_keep_their_16_bits() -> None:
    """As bf16, too: published weights are seldom so small that fp16 has no number for them."""
    weight, small = torch.randn(32, 48).bfloat16(), torch.full((32, 48), 2.0**-30).bfloat16()
    for each in (weight, weight.float(), weight.half()):
        assert isinstance(linear(each, None, torch.float32), HalfLinear)
    assert isinstance(linear(small, None, torch.float32), PlainLinear)


@pytest.mark.parametrize("kernels", ["auto", None])
def test_rounded_weights_give_the_same_text_in_any_company(tmp_path: Path, kernels: Any) -> None:
    folder = build("llama", tmp_path)
    prompts = [tuple((7 * i + j) % VOCABULARY for j in range(5 + 9 * i)) for i in range(6)]
    together = Engine(folder, kernels=kernels, is_rounded=True, step_tokens=19)
    numbers = [together.submit(each) for each in prompts]
    together.run()
    for number, prompt in zip(numbers, prompts, strict=True):
        alone = Engine(folder, kernels=kernels, is_rounded=True)
        own = alone.submit(prompt)
        alone.run()
        assert together.answers[number].tokens == alone.answers[own].tokens


def test_quantizations_are_refused_where_they_are_not_for(tmp_path: Path) -> None:
    folder = build("gpt2", tmp_path)
    for asked, said in (("fp8", "GPU"), ("int4", "is not one of"), ("int8", "Llama's kind")):
        with pytest.raises(ConfigError, match=said) as caught:
            start(folder, EngineOptions(quantization=asked, device="cpu", kv_cache_gib=0.01))
        assert caught.value.field == "quantization"


@pytest.mark.parametrize("kernels", ["torch", "auto"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int8_without_the_kernels_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kernels: str, dtype: str
) -> None:
    folder = build("llama", tmp_path)
    options = {"kernels": kernels, "dtype": dtype}
    with caplog.at_level(logging.WARNING):
        start(
            folder, EngineOptions(quantization="int8", device="cpu", kv_cache_gib=0.01, **options)
        )
    has_none = kernels == "torch" or compiled(torch.float32) is None
    assert ("int8 makes nothing faster here" in caplog.text) == has_none


def test_without_a_compiler_torch_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(building, "instruction_sets", lambda: (building.AVX2,))
    find = building.compiled.__wrapped__
    monkeypatch.setenv("PATH", "")
    assert find(torch.float32) is None
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho no headers >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert find(torch.float32) is None
    assert "no headers" in caplog.text
    assert not list((tmp_path / "headway" / "kernels").iterdir())


def test_a_library_that_does_not_load_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled(torch.float32) is None:
        pytest.skip("no kernels on this machine")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    flags = building._flags(instruction_sets()[0], torch.float32)
    library = building._library("cc", trusted_folder("kernels"), flags)
    assert library is not None
    library.write_bytes(b"")
    assert building.compiled.__wrapped__(torch.float32) is not None
    assert library.stat().st_size


@pytest.mark.skipif(AVX512 not in instruction_sets(), reason="this processor has no AVX-512")
def test_without_a_compiler_what_was_compiled_for_avx2_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled(torch.float32) is None:
        pytest.skip("no compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert building.built(building.AVX2, torch.float32) is not None
    monkeypatch.setenv("PATH", "")
    found = building.compiled.__wrapped__(torch.float32)
    assert found is not None
    assert found.is_whole(8)


@has_kernels
@pytest.mark.parametrize("is_rounded", [False, True])
def test_outputs_that_fill_no_panel_are_filled_up_and_cut_off(
    kernels: Kernels, is_rounded: bool
) -> None:
    weight, bias, x = torch.randn(37, 64).bfloat16(), torch.randn(37), torch.randn(5, 64)
    x = x.bfloat16().float()
    product = linear(weight, bias, torch.float32, kernels, is_rounded=is_rounded)
    assert isinstance(product, PanelLinear)
    assert product.is_filled_up
    whole, scales = rounded(weight) if is_rounded else (weight, torch.ones(37))
    expected = F.linear(x, whole.float() * scales[:, None], bias)
    assert torch.allclose(product(x), expected, atol=1e-4)


@pytest.mark.skipif(AVX512 not in instruction_sets(), reason="this processor has nothing but AVX2")
def test_a_compiler_that_knows_no_avx512_compiles_for_avx2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("cc")
    if real is None:
        pytest.skip("no compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    old = tmp_path / "cc"
    old.write_text(f'#!/bin/sh\ncase "$*" in *avx512*) exit 1;; esac\nexec {real} "$@"\n')
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = building.compiled.__wrapped__(torch.bfloat16)
    assert found is not None
    assert not found.panels(torch.ones(16, 64).bfloat16()).takes_bf16


def test_nothing_is_loaded_from_where_others_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(building, "instruction_sets", lambda: (building.AVX2,))
    folder = tmp_path / "headway" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert building.compiled.__wrapped__(torch.float32) is None
    assert "others may write" in caplog.text
