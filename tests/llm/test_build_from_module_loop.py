"""start_module_loop, group_layers, num_fitting_blocks: a loaded model joined with a scheduler that exists already."""

import pytest
import torch

from chairlift.engine.config import CacheConfig, SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.standalone_scheduler import StandaloneScheduler, limits_of
from chairlift.llm.build_from_module import group_layers, num_fitting_blocks, start_module_loop
from support_engine import make_request
from support_models import tiny_hf_model
from support_transformers_compat import generated


def test_a_module_runs_the_requests_of_a_scheduler() -> None:
    model = tiny_hf_model("mistral", dtype=torch.float32)
    windows, places = group_layers([20, 20, 20])
    cache, config = KVCacheManager(CacheConfig(num_blocks=64, block_size=4, windows=windows)), SchedulerConfig()
    scheduler = StandaloneScheduler(config, cache, limits_of(cache, config))
    prompt = [5, 6, 7, 8]
    scheduler.add_request(make_request("a", prompt, 30), 0.0)
    started = start_module_loop(model, scheduler)
    tokens = [token for _ in range(30) for output in started.loop.step() for token in output.token_ids]
    model.generation_config.eos_token_id = None
    assert tokens == generated(model, prompt, 30)
    assert started.places == places and (started.num_kv_heads, started.head_dim) == (2, 16)
    keys, values = started.tensors[0]
    assert keys.any() and values.any() and tuple(keys.shape[1:]) == (4, 2, 16)
    assert not started.loop.check_integrity()
    started.loop.stop()


def test_layers_are_grouped_by_their_window() -> None:
    assert group_layers([None, None]) == ((None,), ((0, 0), (0, 1)))
    assert group_layers([8, None]) == ((8, None), ((0, 0), (1, 0)))


@pytest.mark.parametrize("block_bytes", [1 << 20, 1 << 24])
def test_half_of_the_free_memory_is_divided_into_blocks(block_bytes: int) -> None:
    count = num_fitting_blocks(block_bytes, "cpu")
    assert 1 <= count < num_fitting_blocks(block_bytes // 4, "cpu")
    assert num_fitting_blocks(1 << 60, torch.device("cpu")) == 1
