"""The kernels' tuning table: what was measured on one GPU, and what others get."""

import pytest

torch = pytest.importorskip("torch")

from headway.engine.gpu.tuning import (  # noqa: E402
    H200,
    TUNED,
    DecodeTiles,
    Device,
    PromptTiles,
    Tiles,
    check_device,
    decode_tiles,
    product_tiles,
    prompt_tiles,
)
from headway.errors import ConfigError  # noqa: E402

A100 = Device("NVIDIA A100-SXM4-80GB", 108, 166_912, (8, 0))
RTX_4090 = Device("NVIDIA GeForce RTX 4090", 128, 101_376, (8, 9))
T4 = Device("Tesla T4", 40, 65_536, (7, 5))


def test_an_h200_gets_what_was_measured_on_it() -> None:
    for size in (64, 128):
        for item_bytes in (2, 4):
            assert decode_tiles(size, item_bytes, H200) == DecodeTiles(64, 2, 3)
            assert prompt_tiles(size, item_bytes, H200) == PromptTiles(128, 64, 8, 2)
    for (width, inner), tiles in TUNED[H200.name].products.items():
        assert product_tiles(width, inner, 64, H200) == tiles


@pytest.mark.parametrize("device", [A100, RTX_4090, T4])
@pytest.mark.parametrize("size", [64, 128, 256])
@pytest.mark.parametrize("item_bytes", [2, 4])
def test_another_gpu_gets_tiles_that_fit_into_its_memory(
    device: Device, size: int, item_bytes: int
) -> None:
    decode = decode_tiles(size, item_bytes, device)
    prompts = prompt_tiles(size, item_bytes, device)
    keys = 2 * size * item_bytes
    assert decode.stages * decode.block * keys + 16 * size * item_bytes < device.shared_bytes
    rows_bytes = prompts.rows * size * item_bytes
    assert prompts.stages * prompts.block * keys + rows_bytes < device.shared_bytes
    for width, inner in TUNED[H200.name].products:
        tiles = product_tiles(width, inner, 64, device)
        assert tiles.stages * tiles.block * (tiles.columns + 64) < device.shared_bytes


def test_a_gpu_with_as_much_memory_is_tuned_as_the_h200() -> None:
    h100 = H200._replace(name="NVIDIA H100 80GB HBM3")
    assert prompt_tiles(128, 2, h100) == prompt_tiles(128, 2, H200)
    assert product_tiles(28_672, 4_096, 32, h100) == Tiles(64, 256, 1, 4, 4)


def test_narrow_products_are_split_until_the_whole_gpu_reads() -> None:
    assert product_tiles(28_672, 2_048, 32, H200).splits == 1
    assert product_tiles(512, 8_192, 32, H200).splits == 8
    assert product_tiles(512, 1_024, 32, H200).splits == 1


def test_what_a_gpu_cannot_multiply_is_refused_by_name() -> None:
    check_device(torch.bfloat16, "fp8", H200)
    check_device(torch.bfloat16, "none", A100)
    check_device(torch.float32, "none", T4)
    with pytest.raises(ConfigError, match=r"fp8 needs 8\.9, NVIDIA A100"):
        check_device(torch.bfloat16, "fp8", A100)
    with pytest.raises(ConfigError, match="float32"):
        check_device(torch.bfloat16, "none", T4)
    with pytest.raises(ConfigError, match="fp8 computes in bfloat16"):
        check_device(torch.float32, "fp8", H200)
