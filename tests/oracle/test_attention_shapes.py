"""Layers with heads of several shapes, without v_proj, with normalised values, or with the keys of another layer.

Logits are those of a plain computation in float64. Whole runs of the engine have them, too.
"""

import random
from dataclasses import replace

import pytest
import torch

from chairlift.core.request import GenerateRequest
from chairlift.engine.runner.base import Runner
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.attention.torch_paged import TorchAttention
from chairlift.model.attention.triton import TritonAttention
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.backends.native_backend import NativeBackend
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.loading.model_building import parameter_shapes
from chairlift.model.runner.torch_runner import TorchRunner
from support_attention_shapes import (
    CPU,
    SHAPES,
    SOURCES,
    VOCAB_SIZE,
    attention_config,
    attention_model,
    dense_logits,
)
from support_batches import teacher_forced_logits
from support_native import need_native
from support_scheduling_runs import VOCAB_SIZE as RUN_VOCAB_SIZE
from support_scheduling_runs import MakeRunner, SchedulingRun, alone, check_run, play, scheduling_run
from support_shares import FULL

_rng = random.Random(5)
BATCH = [[_rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (1, 18, 70, 45)]
PREEMPTS = 11
"""Seed of a run in which a sequence is preempted."""

SEEDS = range(24) if FULL else (0, 2, PREEMPTS)


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("backend", [ReferenceAttention, TorchAttention])
@pytest.mark.parametrize("shapes", SHAPES)
def test_logits_are_those_of_a_plain_computation(shapes: str, backend: type, block_size: int) -> None:
    config = attention_config(**SHAPES[shapes])
    model, weights = attention_model(config, "float64")
    found = teacher_forced_logits(
        model, BATCH, torch.float64, max_chunk=16, block_size=block_size, backend=backend()
    )  # fmt: skip
    for logits, ids in zip(found, BATCH, strict=True):
        expected = dense_logits(config, weights, ids)
        assert expected.std() > 0.05
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)


@pytest.mark.share(1)
@pytest.mark.parametrize("shapes", ["pages that are not full", "wider without a window"])
def test_kernels_of_gpus_have_the_logits_of_a_plain_computation(shapes: str) -> None:
    """By Triton's interpreter, in float32."""
    config, ids = attention_config(**SHAPES[shapes]), [BATCH[1], BATCH[3][:25]]
    model, weights = attention_model(config, "float32")
    found = teacher_forced_logits(model, ids, torch.float32, max_chunk=16, backend=TritonAttention())
    for logits, sequence in zip(found, ids, strict=True):
        expected = dense_logits(config, weights, sequence)
        assert (logits - expected).norm() <= 1e-5 * expected.norm()


def test_only_layers_with_keys_of_their_own_have_parameters_for_them() -> None:
    shapes = parameter_shapes(attention_config())
    for layer, source in enumerate(SOURCES):
        parts = {name for name in "qkvo" if f"model.layers.{layer}.self_attn.{name}_proj.weight" in shapes}
        assert parts == ({"q", "o"} if source is not None else {"q", "k", "o"} if layer in (1, 3) else {*"qkvo"})
        assert (f"model.layers.{layer}.self_attn.k_norm.weight" in shapes) == (source is None)
        assert f"model.layers.{layer}.self_attn.v_norm.weight" not in shapes


def test_each_layer_has_parameters_of_its_own_heads() -> None:
    shapes = parameter_shapes(attention_config(**SHAPES["wider without a window"]))
    for layer, (heads, width) in ((0, (1, 32)), (1, (2, 64))):
        name = f"model.layers.{layer}.self_attn"
        assert shapes[f"{name}.q_proj.weight"] == (4 * width, 72) and shapes[f"{name}.o_proj.weight"] == (72, 4 * width)
        assert shapes[f"{name}.k_proj.weight"] == (heads * width, 72) and shapes[f"{name}.k_norm.weight"] == (width,)


def test_a_layer_that_reads_other_keys_takes_no_place_in_the_cache() -> None:
    groups = attention_config().layer_groups
    assert groups.windows == (20, None) and len(groups.caches) == 2
    assert groups.places == ((0, 0), (1, 0), (0, 1), (1, 1), (0, 1), (1, 1), (0, 1))


def run_of(config: DecoderConfig, seed: int) -> SchedulingRun:
    """Return the run of a seed, of which every other request is greedy."""
    run = scheduling_run(seed, len(config.layer_groups.windows))
    return replace(run, requests=tuple(
        replace(each, params=replace(each.params, temperature=0.0)) if number % 2 else each
        for number, each in enumerate(run.requests)
    ))  # fmt: skip


def make_runner_of(loaded: LoadedModel) -> MakeRunner:
    def make(num_blocks: int, block_size: int, max_batch_tokens: int) -> Runner:
        options = RunnerConfig(
            block_size=block_size, num_blocks=num_blocks, max_batch_tokens=max_batch_tokens, max_running_requests=16,
            device="cpu", attention_backend="torch",
        )  # fmt: skip
        return TorchRunner(options, loaded)

    return make


def likeliest(
    config: DecoderConfig, weights: dict[str, torch.Tensor], request: GenerateRequest, made: list[int]
) -> list[int]:
    """Return the likeliest token of the plain computation at each place of an output."""
    prompt = list(request.prompt_token_ids)
    logits = dense_logits(config, weights, [*prompt, *made[:-1]])[len(prompt) - 1 :]
    return logits.argmax(-1).tolist()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shapes", SHAPES)
def test_whole_runs_have_the_tokens_of_each_request_alone_and_of_a_plain_computation(shapes: str, seed: int) -> None:
    torch.set_num_threads(1)
    config = attention_config(vocab_size=RUN_VOCAB_SIZE, dtype="float64", **SHAPES[shapes])
    model, weights = attention_model(config, "float64")
    make_runner, run = make_runner_of(LoadedModel(model, config, CPU, "random")), run_of(config, seed)
    expected = alone(run, make_runner)
    check_run(run, make_runner, expected)
    for request in run.requests:
        if request.params.temperature == 0:
            made = expected[request.request_id]
            assert made == likeliest(config, weights, request, made)


def test_a_run_preempts_a_sequence() -> None:
    config = attention_config(vocab_size=RUN_VOCAB_SIZE, dtype="float64", **SHAPES["pages that are not full"])
    model, _ = attention_model(config, "float64")
    make_runner = make_runner_of(LoadedModel(model, config, CPU, "random"))
    assert play(run_of(config, PREEMPTS), make_runner).preemptions


@pytest.mark.share(12)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("quantization", "dtype"), [("none", "bfloat16"), ("none", "float32"), ("int4", "bfloat16")])
@pytest.mark.parametrize("shapes", SHAPES)
def test_native_runs_have_the_tokens_of_each_request_alone(
    shapes: str, quantization: str, dtype: str, seed: int
) -> None:
    need_native()
    config = attention_config(vocab_size=RUN_VOCAB_SIZE, dtype=dtype, **SHAPES[shapes])
    backend = NativeBackend(quantization, 2, dtype=dtype)
    model, _ = attention_model(config, dtype, backend)
    loaded = LoadedModel(model, config, CPU, "random", backend.attention(), sampling_ops=backend.sampling_ops())
    run = run_of(config, seed)
    blocks = max(2, -(-run.block_size * run.num_blocks // 16))
    run = replace(run, block_size=16, num_blocks=max(blocks, 4 * len(config.layer_groups.windows)))
    check_run(run, make_runner_of(loaded), alone(run, make_runner_of(loaded)))
