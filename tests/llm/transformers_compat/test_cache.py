"""PagedAttentionCache: blocks by request id, and keys and values by layer."""

import random
from collections.abc import Callable

import pytest
import torch

from chairlift import FIFOScheduler, PagedAttentionCache, RequestState
from chairlift.core.errors import ConfigError
from chairlift.engine.config import CacheConfig
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.llm.transformers_compat.cache import layer_windows
from support_models import tiny_config


def paged(kind: str = "llama", **options: object) -> PagedAttentionCache:
    return PagedAttentionCache(
        tiny_config(kind), {"num_blocks": 12, "block_size": 4, **options}, torch.device("cpu"), torch.float32
    )


@pytest.mark.parametrize("make", [
    lambda: PagedAttentionCache(CacheConfig(num_blocks=12, block_size=4)),
    lambda: PagedAttentionCache(KVCacheManager(CacheConfig(num_blocks=12, block_size=4))),
    paged,
])  # fmt: skip
def test_blocks_are_allocated_and_freed_by_request_id(make: Callable[[], PagedAttentionCache]) -> None:
    cache = make()
    first, second = cache.allocate_blocks(2, "a"), cache.allocate_blocks(1, "a")
    assert isinstance(first, list) and isinstance(second, list)
    assert cache.get_block_table("a") == [*first, *second] and cache.get_num_free_blocks() == 9
    assert cache.allocate_blocks(10, "b") is None and cache.get_num_free_blocks() == 9
    assert cache.num_allocated_blocks() == 3 and cache.check_integrity() == []
    cache.free_blocks("a")
    cache.free_blocks("a")
    cache.free_blocks("never seen")
    assert cache.get_num_free_blocks() == cache.num_blocks == 12 and cache.get_block_table("a") == []


def test_newer_versions_ask_with_a_state_or_with_the_blocks_that_it_has() -> None:
    cache, state = paged(), RequestState("a", [1, 2, 3])
    assert cache.allocate_blocks(2, state) == 2 and cache.allocate_blocks(3, state, state.allocated_blocks) == 3
    assert state.allocated_blocks == 5 and cache.allocate_blocks(1, "a", 5) == 1
    assert cache.allocate_blocks(7, state) is None and state.allocated_blocks == 5
    cache.free_all_requests()
    assert cache.get_num_free_blocks() == 12


def test_a_model_with_windows_has_blocks_in_each_layer_group() -> None:
    cache = paged("gemma3", num_blocks=16)
    groups = len(cache.manager.layouts)
    assert groups > 1 and cache.allocate_blocks(2, RequestState("a", [1])) == 2
    assert cache.get_num_free_blocks() == 16 - 2 * groups
    write: list[list[int]] = [[] for _ in range(groups)]
    read: list[list[int]] = [[] for _ in range(groups)]
    cache.extend_read_and_write_indices("a", 5, 2, read, write)
    assert all(len(each) == 2 for each in write) and len({tuple(each) for each in write}) == groups
    assert all(len(each) == 7 for each in read)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_keys_and_values_are_read_back_in_order(layer: int) -> None:
    cache, random_ = paged(), torch.Generator().manual_seed(layer)
    cache.allocate_blocks(1, "other")
    cache.allocate_blocks(3, "a")
    states = torch.randn(2, 1, 2, 9, 16, generator=random_)
    for start, end in ((0, 5), (5, 6), (6, 9)):
        write = cache.get_write_indices("a", start, end - start)
        read = cache.get_read_indices("a", start, end - start)
        key, value = states[0, :, :, start:end], states[1, :, :, start:end]
        keys, values = cache.update(key, value, layer, torch.tensor(read), torch.tensor(write))
        assert torch.equal(keys, states[0, :, :, :end]) and torch.equal(values, states[1, :, :, :end])
    other = next(each for each in range(3) if each != layer)
    assert not cache.key_cache[other].any() and not cache.value_cache[other].any()
    assert cache.key_cache[layer].shape == (12, 4, 2, 16)
    assert (cache.device, cache.dtype) == (torch.device("cpu"), torch.float32)


def test_indices_come_as_a_mapping_or_by_layer_group_and_without_reads_the_states_return() -> None:
    cache = paged()
    cache.allocate_blocks(2, "a")
    key, value = torch.ones(1, 2, 3, 16), torch.full((1, 2, 3, 16), 2.0)
    write = cache.get_write_indices("a", 0, 3)
    keys, _ = cache.update(key, value, 1, {"read_index": [[]], "write_index": [write]})
    assert keys is key
    _, values = cache.update(key * 3, value * 3, 1, [write], [torch.tensor(write)])
    assert torch.equal(values, value * 3)


def test_without_a_number_of_blocks_the_free_memory_decides() -> None:
    cache = PagedAttentionCache(tiny_config("llama"), None, "cpu", dtype=torch.float32)
    assert cache.num_blocks == 256 * 64 and cache.block_size == 16 and cache.use_prefix_sharing


def test_a_cache_without_a_model_has_no_tensors() -> None:
    cache = PagedAttentionCache(CacheConfig(num_blocks=2, block_size=4))
    with pytest.raises(ConfigError, match="has no tensors"):
        cache.update(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1), 0, [0], [0])


def test_layer_types_of_other_attention_are_refused() -> None:
    config = tiny_config("gemma3")
    assert layer_windows(config) == [20, 20, None, 20]
    config.layer_types = ["linear_attention"] * 4
    with pytest.raises(ConfigError, match="linear_attention"):
        layer_windows(config)


@pytest.mark.share(12)
@pytest.mark.parametrize("seed", range(30))
def test_random_calls_keep_the_cache_consistent(seed: int) -> None:
    """Allocate, free, add, schedule, answer, finish and cancel in any order; at the end every block is free."""
    rng = random.Random(seed)
    cache = PagedAttentionCache(CacheConfig(
        num_blocks=rng.randrange(6, 20), block_size=4, windows=rng.choice([(None,), (None, 8)]),
        enable_prefix_caching=rng.random() < 0.7,
    ))  # fmt: skip
    scheduler = FIFOScheduler(cache, rng.choice([0.0, 0.2]), rng.randrange(1, 6))
    batch: list[RequestState] = []
    for step in range(120):
        action = rng.randrange(7)
        name = f"r{rng.randrange(8)}"
        if action == 0:
            cache.allocate_blocks(rng.randrange(1, 4), f"held-{name}")
        elif action == 1:
            cache.free_blocks(f"held-{name}")
        elif action == 2 and name not in scheduler.states:
            prompt = [rng.randrange(3) for _ in range(rng.randrange(1, 9))]
            scheduler.add_waiting_request(RequestState(name, prompt, max_new_tokens=rng.randrange(1, 5)))
        elif action == 3:
            scheduler.set_request_cancellation(name)
            scheduler.clear_cancelled_requests()
        elif action == 4 and batch:
            scheduler.finish_request(rng.choice(batch).request_id)
        else:
            batch = scheduler.schedule_batch(rng.randrange(1, 12))
            for state in batch:
                is_finished = rng.random() < 0.9 and state.update_and_check_completion(rng.randrange(5))
                if is_finished and rng.random() < 0.5:
                    scheduler.finish_request(state.request_id)
        assert scheduler.check_integrity() == [], f"step {step}"
    for name in list(scheduler.states):
        scheduler.finish_request(name)
    scheduler.commit_batch()
    cache.reset()
    assert scheduler.check_integrity() == [] and cache.get_num_free_blocks() == cache.num_blocks
