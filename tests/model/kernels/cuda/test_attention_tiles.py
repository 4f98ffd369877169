"""decode_tiles, extend_tiles: sizes that Triton accepts, and extend tiles large enough for whole warp groups."""

import pytest
import torch

from chairlift.model.kernels.cuda.attention_tiles import MIN_TILE, decode_tiles, extend_tiles, head_width
from support_shares import for_each

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@for_each(("head_dim", "width"), [(8, 16), (16, 16), (80, 128), (96, 128), (128, 128), (160, 256)])
def test_heads_are_padded_to_a_power_of_two(head_dim: int, width: int) -> None:
    assert head_width(head_dim) == width


@pytest.mark.share(16)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [32, 80, 128, 256])
@pytest.mark.parametrize("group", [1, 5, 16, 71])
def test_a_tile_holds_its_heads(group: int, head_dim: int, dtype: torch.dtype) -> None:
    for tiles in (decode_tiles(dtype, head_dim, group), extend_tiles(dtype, head_dim, group)):
        for size in (tiles.rows, tiles.keys, tiles.width):
            assert size >= MIN_TILE and size & (size - 1) == 0
        assert tiles.rows >= tiles.heads and tiles.width >= head_dim
        assert (tiles.parts(group) - 1) * tiles.heads < group <= tiles.parts(group) * tiles.heads


def test_a_large_group_is_divided_where_its_tile_would_be_too_large() -> None:
    def heads(dtype: torch.dtype, head_dim: int, group: int) -> list[int]:
        return [tiles(dtype, head_dim, group).heads for tiles in (decode_tiles, extend_tiles)]

    assert heads(torch.bfloat16, 128, 48) == [48, 48]
    assert heads(torch.bfloat16, 64, 71) == [36, 36]
    assert heads(torch.bfloat16, 256, 48) == heads(torch.float32, 128, 48) == [24, 24]


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_extend_tiles_of_16_bits_fill_a_warp_group(head_dim: int) -> None:
    assert extend_tiles(torch.bfloat16, head_dim, 4).rows == (128 if head_dim <= 128 else 64)


def test_products_of_float32_are_not_rounded_to_10_bits() -> None:
    assert decode_tiles(torch.float32, 64, 1).precision == extend_tiles(torch.float32, 64, 1).precision == "tf32x3"


def test_heads_of_512_have_tiles_that_fit_into_the_shared_memory_of_consumer_gpus() -> None:
    for group in (8, 71):
        tiles = extend_tiles(torch.bfloat16, 512, group)
        assert (tiles.rows + 2 * tiles.keys * tiles.num_stages) * tiles.width * 2 <= 99 * 1024
