"""NativeDecoder: as close to float32 as torch's bfloat16 in every architecture, with the same bits in every batch."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from chairlift.engine.step_plan import TokenMasks
from chairlift.model.attention.kv_pages import allocate_kv
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.backends.model_backend import ModelBackend
from chairlift.model.backends.native_backend import NativeBackend
from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.device.dtypes import torch_dtype
from chairlift.model.kernels.cpu.instruction_sets import INSTRUCTION_SET_VARIABLE
from chairlift.model.layers.causal_lm_protocol import CausalLM, ForwardContext
from chairlift.model.loading.model_building import random_model
from chairlift.model.sampling.lm_head_output import LogitsRequest, compute_lm_head_output
from support_attention_shapes import SHAPES as HEAD_SHAPES
from support_attention_shapes import attention_config
from support_batches import Row, make_batch
from support_native import instruction_sets, need_native

CPU = torch.device("cpu")

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"]},
    "llama, untied, with biases": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False,
    },
    "qwen3": {"architectures": ["Qwen3ForCausalLM"]},
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": 20},
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"], "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 20, "query_pre_attn_scalar": 32, "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"], "sliding_window": 20, "query_pre_attn_scalar": 32,
        "attn_logit_softcapping": 3.0,
    },
    "gemma4": {
        "architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": 6, "num_kv_shared_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2, "sliding_window": 20,
        "hidden_size_per_layer_input": 20, "vocab_size_per_layer_input": 203, "use_double_wide_mlp": True,
        "global_head_dim": 64,
    },
    "gemma4_dense": {
        "architectures": ["Gemma4ForCausalLM"], "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 20, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "global_head_dim": 64,
    },
    "gemma4_moe": {
        "architectures": ["Gemma4ForCausalLM"], "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 20, "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 4,
        "top_k_experts": 3, "moe_intermediate_size": 36, "global_head_dim": 64,
    },
    "olmo2": {"architectures": ["Olmo2ForCausalLM"]},
    "granite": {
        "architectures": ["GraniteForCausalLM"], "embedding_multiplier": 3.0, "logits_scaling": 5.0,
        "residual_multiplier": 0.22, "attention_multiplier": 0.1,
    },
    "ministral3": {
        "architectures": ["Ministral3ForCausalLM"], "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16,
            "llama_4_scaling_beta": 0.3,
        },
    },
    "smollm3": {"architectures": ["SmolLM3ForCausalLM"], "no_rope_layer_interval": 2},
    "glm4": {"architectures": ["Glm4ForCausalLM"]},
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8, "num_experts_per_tok": 3,
        "moe_intermediate_size": 36, "mlp_only_layers": [1],
    },
    "gpt_oss": {
        "architectures": ["GptOssForCausalLM"], "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 20,
    },
}  # fmt: skip

ATTENTION: dict[str, dict[str, Any]] = {f"attention: {name}": fields for name, fields in HEAD_SHAPES.items()}
"""Changes of attention_config."""

KINDS = (*SHAPES, *ATTENTION)

Steps = list[list[Row]]


def config_of(kind: str, **fields: Any) -> DecoderConfig:
    if kind in ATTENTION:
        return attention_config(**ATTENTION[kind], **fields)
    return parse_decoder_config({
        "vocab_size": 203, "hidden_size": 72, "intermediate_size": 100, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512,
        "tie_word_embeddings": True, "rms_norm_eps": 1e-6, **SHAPES[kind], **fields,
    })  # fmt: skip


def model_of(config: DecoderConfig, dtype: str, model_backend: ModelBackend | None = None) -> CausalLM:
    chosen = None if model_backend is None else lambda _: model_backend
    # Queries whose norm is in the place of a scale of attention: as they are drawn, one key would have all the weight.
    is_scaled = config.attention_scale < 1.0 or config.head_norm == ""

    def change(name: str, tensor: Tensor) -> Tensor:
        factor = 1.0 if is_scaled or not name.endswith("q_norm.weight") else 0.125
        return (tensor.half() * factor).bfloat16().float()

    made, _ = random_model(
        config, seed=3, dtype=dtype, device=CPU, max_model_len=512, scale=0.1, choose_backend=chosen, change=change
    )
    return made


def native(config: DecoderConfig, quantization: str = "none", threads: int = 2, dtype: str = "bfloat16") -> CausalLM:
    need_native()
    return model_of(config, dtype, NativeBackend(quantization, threads, dtype=dtype))


def logits_of(model: CausalLM, steps: Steps, dtype: torch.dtype, native_cache: bool) -> list[Tensor]:
    """Run steps of rows over one KV cache; return the logits of every token, by step."""
    groups = len(model.groups.windows)
    backend: Any = ReferenceAttention()
    if native_cache:
        backend = NativeBackend().attention()()
    kv = allocate_kv(backend, model.groups, 64 * groups, 16, dtype, CPU)
    found = []
    for step in steps:
        rows = [
            replace(row, tables=tuple(tuple(64 * group + block for block in row.tables[0]) for group in range(groups)))
            for row in step
        ]
        batch = make_batch(rows, 16)
        ids = torch.cat(
            [torch.arange(row.seq_len - row.num_new_tokens, row.seq_len) * 7 % 199 + row.tables[0][0] for row in rows]
        )
        with torch.inference_mode():
            hidden = model.forward(ids % 203, ForwardContext(batch, kv, backend, backend.plan(batch)))
            found.append(model.logits(hidden).clone().float())
    return found


def rows(*each: tuple[int, int, int]) -> list[Row]:
    """Return rows of (new tokens, tokens afterwards, first block)."""
    return [Row(new, length, (tuple(range(first, first + -(-length // 16))),)) for new, length, first in each]


def error_of(found: Tensor, exact: Tensor, config: DecoderConfig) -> float:
    """Return the relative error of logits [T, V]; with experts the median of the rows.

    Where two experts of a row are nearly as good, rounding decides between them, and changes that row as a whole.
    """
    if config.experts is None:
        return float((found - exact).norm() / exact.norm())
    return float(((found - exact).norm(dim=1) / exact.norm(dim=1)).median())


STEPS = [rows((50, 50, 1), (70, 70, 8)), rows((1, 51, 1), (20, 20, 20), (40, 110, 8)), rows((1, 52, 1), (1, 111, 8))]


@pytest.mark.share(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", instruction_sets())
def test_the_error_is_no_larger_than_that_of_torch(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, name)
    config = config_of(kind)
    exact = torch.cat(logits_of(model_of(config, "float32"), STEPS, torch.float32, False))
    plain = torch.cat(logits_of(model_of(config, "bfloat16"), STEPS, torch.bfloat16, False))
    found = torch.cat(logits_of(native(config), STEPS, torch.bfloat16, True))
    error = error_of(found, exact, config)
    assert error <= 1.1 * error_of(plain, exact, config)
    assert error <= 0.05


@pytest.mark.share(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", instruction_sets())
def test_float32_is_as_exact_as_torch_and_float16_weights_are_those_of_float32(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, name)
    config = config_of(kind)
    exact, plain = (
        torch.cat(logits_of(model_of(config, dtype), STEPS, torch_dtype(dtype), False)).double()
        for dtype in ("float64", "float32")
    )
    found = torch.cat(logits_of(native(config, dtype="float32"), STEPS, torch.float32, True))
    assert (found - exact).norm() <= max(2 * (plain - exact).norm(), 1e-6 * exact.norm())
    halves = torch.cat(logits_of(native(config, dtype="float16"), STEPS, torch.float32, True))
    assert torch.equal(halves, found)


@pytest.mark.share(6)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("quantization", "limit"), [("int8", 0.12), ("int8-channel", 0.12), ("int4", 0.5)])
@pytest.mark.parametrize("kind", KINDS)
def test_rounded_weights_are_near(kind: str, quantization: str, limit: float, dtype: str) -> None:
    config = config_of(kind)
    exact = torch.cat(logits_of(model_of(config, "float32"), STEPS, torch.float32, False))
    found = torch.cat(logits_of(native(config, quantization, dtype=dtype), STEPS, torch_dtype(dtype), True))
    assert error_of(found, exact, config) <= limit


@pytest.mark.share(1)
@pytest.mark.parametrize("name", instruction_sets())
@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ("none", "bfloat16"),
        ("int8", "bfloat16"),
        ("int8-channel", "bfloat16"),
        ("none", "float32"),
        ("int8", "float32"),
        ("int4", "bfloat16"),
        ("int4", "float32"),
    ],
)
@pytest.mark.parametrize("kind", ["qwen3", "gemma3", "gemma4", "gemma4_dense", "gemma4_moe", *ATTENTION])
def test_a_token_has_the_same_bits_in_every_batch_and_chunking(
    kind: str, quantization: str, dtype: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, name)
    config, of = config_of(kind), torch_dtype(dtype)
    whole = logits_of(native(config, quantization, dtype=dtype), [rows((300, 300, 1))], of, True)[0]
    model = native(config, quantization, threads=1, dtype=dtype)
    chunks = [(7, 7), (1, 8), (120, 128), (1, 129), (150, 279), (1, 280), (20, 300)]
    alone = torch.cat(logits_of(model, [rows((new, end, 1)) for new, end in chunks], of, True))
    assert torch.equal(alone, whole)
    model = native(config, quantization, threads=3, dtype=dtype)
    mixed: Steps = []
    for new, end in chunks:
        others = rows((1, 30, 25), (1, 200, 30))
        mixed.append(
            sorted([*others, *rows((new, end, 1)), *rows((33, 33, 50))], key=lambda row: row.num_new_tokens != 1)
        )
    found = []
    for step, (step_rows, (new, end)) in enumerate(zip(logits_of(model, mixed, of, True), chunks, strict=True)):
        begin = sum(row.num_new_tokens for row in mixed[step][: mixed[step].index(*rows((new, end, 1)))])
        found.append(step_rows[begin : begin + new])
    assert torch.equal(torch.cat(found), whole)


def decoder_after_step(kind: str, quantization: str = "none") -> CausalLM:
    """Return a model that has computed a step."""
    model = native(config_of(kind), quantization)
    logits_of(model, STEPS[:1], torch.bfloat16, True)
    return model


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_the_head_s_largest_logit_is_the_largest_of_all(kind: str) -> None:
    model = decoder_after_step(kind)
    hidden = torch.randn(21, 72, generator=torch.Generator().manual_seed(1)).bfloat16()
    logits = model.logits(hidden)
    found = model.head(hidden, LogitsRequest(np.zeros(21, bool)))
    assert found.max_logits.tolist() == logits.amax(-1).tolist() and len(found.logits) == 0
    assert torch.equal(torch.from_numpy(found.argmax_ids), logits.argmax(-1))
    wider = torch.full((21, 90), 9.0).bfloat16()
    wider[:, :72] = hidden
    again = model.head(wider[:, :72], LogitsRequest(np.ones(21, bool)))
    assert np.array_equal(again.max_logits, found.max_logits) and torch.equal(again.logits, logits), (
        "rows of a wider buffer"
    )
    hidden[4] = torch.nan
    hidden[7] = 0
    found = model.head(hidden, LogitsRequest(np.zeros(21, bool)))
    assert np.isnan(found.max_logits[4]) and np.isfinite(found.max_logits[[0, 1, 2, 3, 5, 6]]).all()
    assert found.argmax_ids[7] == 0, "the lowest of equal logits"


@pytest.mark.parametrize("name", instruction_sets())
@pytest.mark.parametrize(
    ("kind", "quantization"),
    [("llama", "none"), ("gemma3", "none"), ("llama", "int8"), ("llama", "int8-channel"), ("llama", "int4")],
)
def test_the_head_says_under_masks_what_all_logits_do(
    name: str, kind: str, quantization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, name)
    model = decoder_after_step(kind, quantization)
    dice = np.random.default_rng(5)
    for count in (1, 2, 7, 21):
        hidden = torch.randn(count, 72, generator=torch.Generator().manual_seed(count)).bfloat16()
        if count > 5:
            hidden[5] = 0  # all equal
        logits = model.logits(hidden)
        words = int(dice.integers(1, -(-model.vocab_size // 32) + 1))
        masked_rows = np.sort(dice.permutation(count)[: dice.integers(0, count + 1)]).astype(np.int32)
        bits = dice.integers(-(2**31), 2**31, (len(masked_rows), words), np.int64).astype(np.int32)
        for row in range(len(masked_rows)):  # dense and sparse, some words full or empty
            bits[row, dice.random(words) < dice.random()] = dice.choice([0, -1, 1 << 7])
        request = LogitsRequest(dice.random(count) < 0.5, TokenMasks(masked_rows, bits))
        expected, found = compute_lm_head_output(logits.clone(), request), model.head(hidden, request)
        assert np.array_equal(found.max_logits, expected.max_logits) and torch.equal(found.logits, expected.logits)
        assert np.array_equal(found.masked_max_logits, expected.masked_max_logits)
        assert found.argmax_ids.tolist() == expected.argmax_ids.tolist()
        has_allowed = np.isfinite(expected.masked_max_logits)
        assert found.masked_argmax_ids[has_allowed].tolist() == expected.masked_argmax_ids[has_allowed].tolist()
        assert ((found.masked_argmax_ids >= 0) & (found.masked_argmax_ids < model.vocab_size)).all()


def test_steps_may_grow_and_shrink() -> None:
    config = config_of("llama")
    small = logits_of(native(config), [rows((4, 4, 1))], torch.bfloat16, True)[0]
    grown = logits_of(
        native(config), [rows((4, 4, 1)), rows((500, 500, 10)), rows((4, 4, 1))], torch.bfloat16, True
    )  # fmt: skip
    assert torch.equal(grown[0], small) and torch.equal(grown[2], small)


def test_seconds_are_reported_by_kind_of_operation() -> None:
    model = native(config_of("qwen3"))
    logits_of(model, STEPS, torch.bfloat16, True)
    op_seconds = model.op_seconds()  # type: ignore[attr-defined]
    assert {"embed", "norm", "linear", "rope_cache", "attention", "lm_head"} <= set(op_seconds)
    assert all(seconds >= 0 for seconds in op_seconds.values())
    assert model.op_seconds() == {}  # type: ignore[attr-defined]
