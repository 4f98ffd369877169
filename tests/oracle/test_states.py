"""Models whose layers keep a state: the same bits however a prompt is cut, and a turn computes only what is new."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from chairlift import LLM, AsyncLLM, SamplingParams
from support_interpreted_gpu import compute_elements_alike, interpret_gpu
from support_models import HYBRIDS, VOCAB_SIZE, save_tiny
from support_native import need_native
from support_shares import FULL

KINDS = ("qwen3_5", "lfm2", "granite_hybrid")
PARAMS = SamplingParams(temperature=0, max_tokens=12, logprobs=1, ignore_eos=True)
rng = random.Random(4)
PROMPTS = [[rng.randrange(8, VOCAB_SIZE) for _ in range(length)] for length in (1, 50, 33, 18)]


def made(
    folder: Path, prompts: list[list[int]], sampling: SamplingParams = PARAMS, **options: Any
) -> list[tuple[list[int], list[float]]]:
    """Return tokens and their logprobs."""
    with LLM(folder, num_blocks=100, **{"dtype": "float32", **options}) as llm:
        outputs = [output.outputs[0] for output in llm.generate(prompts, sampling, use_tqdm=False)]
    return [(list(each.token_ids), [one.logprob for one in each.token_logprobs or ()]) for each in outputs]


@pytest.mark.share(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_do_not_depend_on_chunks_batches_or_threads(kind: str, dtype: str, tmp_path: Path) -> None:
    need_native()
    folder = save_tiny(kind, tmp_path)
    whole = made(folder, PROMPTS, dtype=dtype)
    for options in ({"max_chunk_tokens": 1}, {"max_chunk_tokens": 7}, {"max_running_requests": 1}):
        assert made(folder, PROMPTS, dtype=dtype, **options) == whole
    assert [made(folder, [prompt], dtype=dtype)[0] for prompt in PROMPTS] == whole


@pytest.mark.share(2)
@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("kind", HYBRIDS)
def test_quantized_weights_have_the_same_bits_alone_and_in_a_batch(
    kind: str, quantization: str, tmp_path: Path
) -> None:
    """Layers with a state and attention read rows of different widths in four of the kinds."""
    need_native()
    folder = save_tiny(kind, tmp_path)
    whole = made(folder, PROMPTS, quantization=quantization)
    assert [made(folder, [prompt], quantization=quantization)[0] for prompt in PROMPTS] == whole
    assert made(folder, PROMPTS, quantization=quantization, max_chunk_tokens=7) == whole


@pytest.mark.parametrize("kind", KINDS)
def test_a_warm_up_changes_no_state_of_a_running_sequence(kind: str, tmp_path: Path) -> None:
    folder = save_tiny(kind, tmp_path)

    async def run(*, warms_up: bool) -> list[list[int]]:
        async with AsyncLLM(folder, num_blocks=100, dtype="float32") as llm:
            streams = [llm.generate(prompt, PARAMS, request_id=str(number)) for number, prompt in enumerate(PROMPTS)]
            firsts = [await anext(stream) for stream in streams]
            if warms_up:
                await llm.warmup()
            rest = [[output async for output in stream] for stream in streams]
        return [list((more or [first])[-1].outputs[0].token_ids) for first, more in zip(firsts, rest, strict=True)]

    assert asyncio.run(run(warms_up=True)) == asyncio.run(run(warms_up=False))


@pytest.mark.share(1)
@pytest.mark.parametrize("kind", HYBRIDS)
def test_each_turn_of_a_conversation_computes_only_what_is_new(kind: str, tmp_path: Path) -> None:
    folder, prompt, block_size = save_tiny(kind, tmp_path), list(PROMPTS[1]), 16
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    with (
        LLM(folder, num_blocks=100, dtype="float32") as llm,
        LLM(folder, num_blocks=100, dtype="float32", enable_prefix_caching=False) as plain,
    ):
        computed = 0
        for turn in range(5):
            output, expected = (each.generate([prompt], params, use_tqdm=False)[0] for each in (llm, plain))
            assert output.outputs[0].token_ids == expected.outputs[0].token_ids
            cached = output.num_cached_tokens or 0
            assert cached >= computed - block_size, f"turn {turn}: {cached} of {computed}"
            assert cached > 0 or turn == 0
            prompt += [*output.outputs[0].token_ids]
            computed = len(prompt) - 1
            prompt += [(31 * turn + token) % 290 + 8 for token in range(21)]


SHORT = SamplingParams(temperature=0, max_tokens=3, logprobs=1, ignore_eos=True)
TWO_LAYERS = {
    "qwen3_5": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "lfm2": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
}
OF_GPUS: dict[str, Any] = {"attention_backend": "triton", "deterministic": True}


@pytest.mark.share(1)
@pytest.mark.parametrize("kind", HYBRIDS)
def test_the_kernels_of_gpus_have_the_same_bits_however_a_prompt_is_cut(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, prompts = save_tiny(kind, tmp_path, **({} if FULL else TWO_LAYERS.get(kind, {}))), [PROMPTS[3], PROMPTS[0]]
    expected = [tokens for tokens, _ in made(folder, prompts, SHORT, dtype="float64")]
    interpret_gpu(monkeypatch)
    compute_elements_alike(monkeypatch)
    whole = made(folder, prompts, SHORT, **OF_GPUS)
    assert [tokens for tokens, _ in whole] == expected
    assert made(folder, prompts, SHORT, max_chunk_tokens=7, **OF_GPUS) == whole


@pytest.mark.share(1)
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernels_of_gpus_go_on_from_a_checkpoint_with_the_same_bits(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the reply was decoded up to the checkpoint; without the cache it is a part of the next prompt."""
    interpret_gpu(monkeypatch)
    compute_elements_alike(monkeypatch)
    folder, prompt = save_tiny(kind, tmp_path, **({} if FULL else TWO_LAYERS.get(kind, {}))), PROMPTS[2][:30]
    with LLM(folder, num_blocks=100, dtype="float32", **OF_GPUS) as llm:
        # Their states behind drafts are not those of whole chunks.
        assert (llm._service.client.info.no_drafts_reason != "") == (kind != "lfm2")
        reply = llm.generate([prompt], SHORT, use_tqdm=False)[0].outputs[0]
        longer = [*prompt, *reply.token_ids, 8, 9]
        result = llm.generate([longer], SHORT, use_tqdm=False)[0]
    assert result.num_cached_tokens == 32
    output = result.outputs[0]
    found = (list(output.token_ids), [one.logprob for one in output.token_logprobs or ()])
    assert made(folder, [longer], SHORT, enable_prefix_caching=False, **OF_GPUS) == [found]
