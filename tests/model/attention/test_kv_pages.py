"""allocate_kv: layers of several shapes have parts of pages, which are moved and counted as a whole."""

from collections.abc import Callable

import pytest
import torch

from chairlift.model.attention.base import AttentionBackend, PagedKV, copy_blocks, whole_pages
from chairlift.model.attention.kv_pages import allocate_kv, kv_bytes
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.attention.torch_paged import TorchAttention
from chairlift.model.backends.native_attention import NativeAttention
from chairlift.model.batch.kv_cache_shape import SPARE_BLOCKS, kv_cache_shape
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.device.page_prefault import HUGE_PAGE, PagePrefaulter
from chairlift.model.kernels.cpu.instruction_sets import selected_instruction_set
from chairlift.model.kernels.cpu.threads import get_thread_pool
from support_attention_shapes import CPU, SHAPES, attention_config
from support_native import need_native

BLOCKS, BLOCK_SIZE = 7, 16


def native() -> NativeAttention:
    need_native()
    return NativeAttention(get_thread_pool(1), selected_instruction_set())


BACKENDS: dict[str, Callable[[], AttentionBackend]] = {
    "reference": ReferenceAttention, "torch": TorchAttention, "native": native,
}  # fmt: skip
UNEVEN = attention_config(**SHAPES["pages that are not full"]).layer_groups


def contents(kv: list[PagedKV], block: int) -> list[torch.Tensor]:
    """Return the keys and values of a block in each cache, copied."""
    return [each[block].clone() for layer in kv for each in (layer.key, layer.value)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SHAPES)
def test_the_bytes_are_those_that_are_counted(name: str, backend: str) -> None:
    config = attention_config(**SHAPES[name])
    groups = config.layer_groups
    kv = allocate_kv(BACKENDS[backend](), groups, BLOCKS, BLOCK_SIZE, torch.float32, CPU)
    assert [each.key.shape for each in kv] == [
        (BLOCKS, BLOCK_SIZE, place.shape.num_kv_heads, place.shape.head_dim) for place in groups.caches
    ]
    page = kv_cache_shape(RunnerConfig(block_size=BLOCK_SIZE), config, groups, 100).page_bytes
    assert kv_bytes(kv) == BLOCKS * page
    storages = [each.untyped_storage() for layer in kv for each in (layer.key, layer.value)]
    stored = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    assert BLOCKS * page <= stored <= (BLOCKS + SPARE_BLOCKS) * page


@pytest.mark.parametrize("backend", BACKENDS)
def test_layers_of_other_groups_share_a_page_and_those_of_one_group_do_not_overlap(backend: str) -> None:
    kv = allocate_kv(BACKENDS[backend](), UNEVEN, BLOCKS, BLOCK_SIZE, torch.float32, CPU)
    for block in range(BLOCKS):
        for index, place in enumerate(UNEVEN.caches):
            if place.shape == UNEVEN.caches[block % len(UNEVEN.caches)].shape:
                kv[index].key[block], kv[index].value[block] = 10 * block + index, -(10 * block + index)
    for block in range(BLOCKS):
        for index, place in enumerate(UNEVEN.caches):
            if place.shape == UNEVEN.caches[block % len(UNEVEN.caches)].shape:
                number = 10 * block + index
                assert (kv[index].key[block] == number).all() and (kv[index].value[block] == -number).all()
    assert len(whole_pages(kv)) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_move_takes_whole_pages_whatever_their_layers_are(backend: str) -> None:
    kv = allocate_kv(BACKENDS[backend](), UNEVEN, BLOCKS, BLOCK_SIZE, torch.float32, CPU)
    for layer in whole_pages(kv):
        layer.key.copy_(torch.randn(layer.key.shape))
        layer.value.copy_(torch.randn(layer.value.shape))
    before = [contents(kv, block) for block in range(BLOCKS)]
    pairs = [(0, 1), (1, 2), (2, 0), (5, 6)]  # a target is the source of another pair
    copy_blocks(kv, torch.tensor(pairs))
    for source, target in [*pairs, (3, 3), (4, 4), (5, 5)]:
        assert all(map(torch.equal, contents(kv, target), before[source])), (source, target)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pages_are_released_as_a_whole(backend: str) -> None:
    page_bytes = UNEVEN.page_width * BLOCK_SIZE * 4
    blocks = 4 * HUGE_PAGE // page_bytes
    kv = allocate_kv(BACKENDS[backend](), UNEVEN, blocks, BLOCK_SIZE, torch.float32, CPU)
    for layer in kv:
        layer.key.fill_(1.0)
    released = PagePrefaulter(each for layer in kv for each in (layer.key, layer.value)).release(blocks // 2)
    kept = [layer.key[: blocks // 2] for layer in kv]
    assert released >= 2 * HUGE_PAGE and all((each == 1.0).all() for each in kept)
    assert all((layer.key[blocks * 3 // 4] == 0.0).all() for layer in kv)
