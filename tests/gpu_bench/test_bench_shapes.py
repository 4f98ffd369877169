"""bench_shapes.py: bytes and operations equal numbers computed by hand; the loader accepts the shapes."""

import pytest

from chairlift.model.loading.model_building import parameter_shapes
from gpu_bench.bench_shapes import LLAMA_8B, QWEN3_06B, SIZES, BenchShape
from support_shares import for_each

BANDWIDTH, PEAK = 4.3e12, 790e12


@pytest.mark.parametrize(
    ("shape", "weight_bytes", "kv_bytes"),
    [
        # layers * (hidden * (q + k + v) + q * hidden + hidden * 2 * intermediate + intermediate * hidden) + lm_head
        (LLAMA_8B, 2 * (32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14_336) + 4096 * 128_256), 131_072),
        (QWEN3_06B, 2 * (28 * (1024 * 4096 + 2048 * 1024 + 3 * 1024 * 3072) + 1024 * 151_936), 114_688),
    ],
)
def test_bytes_of_a_step_equal_those_by_hand(shape: BenchShape, weight_bytes: int, kv_bytes: int) -> None:
    assert shape.step_weight_bytes == weight_bytes and shape.sizes.kv_bytes(1) == kv_bytes
    assert shape.step_weight_bytes / 1e9 == pytest.approx({131_072: 15.01, 114_688: 1.192}[kv_bytes], abs=0.005)


@for_each(
    ("shape", "batch", "milliseconds"),
    [
        (LLAMA_8B, 1, 3.52), (LLAMA_8B, 64, 5.49), (LLAMA_8B, 256, 12.85), (QWEN3_06B, 1, 0.304),
        (QWEN3_06B, 64, 2.03), (QWEN3_06B, 256, 7.38),
    ],
)  # fmt: skip
def test_roofline_adds_the_kv_cache_to_the_slower_of_weights_and_products(
    shape: BenchShape, batch: int, milliseconds: float
) -> None:
    seconds = shape.decode_roofline(batch, 1024, BANDWIDTH, PEAK)
    assert seconds * 1000 == pytest.approx(milliseconds, abs=0.01)


def test_products_bound_the_weights_of_a_large_batch() -> None:
    by_hand = 2 * 7_504_658_432 * 256 / PEAK + 256 * 1024 * 131_072 / BANDWIDTH
    assert LLAMA_8B.decode_roofline(256, 1024, BANDWIDTH, PEAK) == pytest.approx(by_hand, rel=1e-12)
    by_hand = 15_009_316_864 / BANDWIDTH + 1024 * 131_072 / BANDWIDTH
    assert LLAMA_8B.decode_roofline(1, 1024, BANDWIDTH, PEAK) == pytest.approx(by_hand, rel=1e-12)


def test_prefill_counts_one_row_of_the_lm_head_and_causal_pairs() -> None:
    by_hand = 2 * 6_979_321_856 * 4096 + 2 * 525_336_576 + 4 * 32 * 32 * 128 * (4096 * 4097 // 2)
    assert LLAMA_8B.prefill_flops(4096) == by_hand
    assert by_hand / PEAK * 1000 == pytest.approx(78, abs=0.5)


@pytest.mark.parametrize("name", SIZES)
def test_the_loader_reads_the_shapes(name: str) -> None:
    for shape in (SIZES[name].large, SIZES[name].small):
        config, parameters = shape.decoder_config, parameter_shapes(shape.decoder_config)
        assert config.dtype == "bfloat16" and config.eos_token_ids == ()
        assert ("lm_head.weight" in parameters) is not shape.config["tie_word_embeddings"]
        assert any("q_norm" in each for each in parameters) is (config.architecture == "Qwen3ForCausalLM")
        assert SIZES[name].max_model_len <= config.max_context
        matrices = sum(rows * width for rows, width in (size for size in parameters.values() if len(size) == 2))
        is_untied = not shape.config["tie_word_embeddings"]
        assert shape.step_weights == matrices - is_untied * shape.sizes.head_weights  # a step reads few embeddings
