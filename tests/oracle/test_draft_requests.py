"""Drafts change nothing that a request shows: random requests with all sampling parameters, with and without drafts.

Compared are tokens, text, logprobs, prompt logprobs, finish reasons and embeddings beside, bit for bit on the native
kernels. Runs with drafts have few blocks, so that sequences are preempted, and chunks, prefix hits, requests that were
resumed, and one or two steps in flight. The drafter is always right, sometimes wrong or always wrong.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chairlift import LLM, SamplingParams
from chairlift.engine import engine_loop
from chairlift.llm.outputs import RequestOutput
from chairlift.model.config.select_model_config import read_config
from chairlift.text.byte_tokenizer import ByteTokenizer
from support_draft_requests import (
    FACTORIES,
    FAILING_KIND,
    NUM_KINDS,
    KnownOutputs,
    draft_requests,
    shown_logprobs,
    visible,
)
from support_drafters import ExpectedDrafter
from support_models import VOCAB_SIZE, save_tiny
from support_native import need_native
from support_shares import FULL, each_value

SEEDS = 4 if FULL else 1
COUNT = 2 * NUM_KINDS
"""Requests of a seed."""

MODELS = {
    "torch float64": {"dtype": "float64", "attention_backend": "torch", "kernels": "torch"},
    "bfloat16": {"dtype": "bfloat16", "kernels": "native"},
    "int8": {"dtype": "bfloat16", "kernels": "native", "quantization": "int8"},
}
EMBEDDED = [[*b"a lift to embed"], [*b"abc" * 9]]


def tiny_with_text(kind: str, folder: Path) -> Path:
    """Write a tiny model with a tokenizer whose tokens are bytes."""
    save_tiny(kind, folder)
    (folder / "tokenizer.json").write_text(ByteTokenizer().serialized())
    return folder


@contextmanager
def engine(folder: Path, drafter: ExpectedDrafter | None = None, **options: Any) -> Iterator[LLM]:
    """Start an engine with a drafter, or without any."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_loop, "make_drafters", lambda config: () if drafter is None else (drafter,))
        with LLM(folder, device="cpu", logits_processor_factories=FACTORIES, **options) as llm:
            yield llm


def run(
    llm: LLM, requests: list[tuple[str, SamplingParams]], resume: list[list[list[int]]] | None = None
) -> list[RequestOutput]:
    """Run requests, and two for embeddings among them, whose outputs come last."""
    service = llm._service
    processors = [
        service.prepare_completion(prompt, params, resume=() if resume is None else resume[number])
        for number, (prompt, params) in enumerate(requests)
    ]
    processors[5:5] = [service.prepare_embedding(prompt, pooling="last") for prompt in EMBEDDED]
    results = llm._run(processors, use_tqdm=False)
    return results[:5] + results[7:] + results[5:7]


def resumed_part(result: RequestOutput, params: SamplingParams, rng: random.Random) -> list[list[int]]:
    """Return some of each choice's tokens, as if the engine had been lost then; none where a resume is not allowed."""
    if params.best_of is not None or result.error is not None or rng.random() < 0.6:
        return []
    return [choice.token_ids[: rng.randrange(len(choice.token_ids) + 1)] for choice in result.outputs]


def check_resumed(result: RequestOutput, whole: RequestOutput, digits: int | None) -> None:
    """Compare a request that was resumed: its logprobs are those of its new tokens."""
    for one, other in zip(result.outputs, whole.outputs, strict=True):
        assert (one.token_ids, one.text, one.finish_reason, one.stop_reason) == (
            other.token_ids, other.text, other.finish_reason, other.stop_reason
        )  # fmt: skip
        if one.token_logprobs:
            right = (other.token_logprobs or [])[-len(one.token_logprobs) :]
            assert shown_logprobs(one.token_logprobs, digits) == shown_logprobs(right, digits)


def check_requests(folder: Path, seed: int, **options: Any) -> tuple[int, int, int]:
    """Check the requests of a seed; returns drafts, those confirmed, and preemptions."""
    rng = random.Random(f"requests {seed}")
    requests = draft_requests(rng, COUNT)
    # In torch the last bits of float64 depend on the batch, without drafts, too.
    digits = 5 if options["dtype"] == "float64" else None
    num_groups = len(read_config(folder).layer_groups.windows)
    with engine(folder, num_blocks=900, **options) as llm:
        expected = run(llm, requests)
        assert llm._service.client.info.no_drafts_reason == ""
    errors = [number % NUM_KINDS for number, result in enumerate(expected) if result.error is not None]
    assert set(errors) <= {FAILING_KIND}, f"errors of kinds {errors}"
    known = KnownOutputs()
    for (_, params), result in zip(requests, expected, strict=False):
        known.add(params, result)
    resume = [resumed_part(result, params, rng) for (_, params), result in zip(requests, expected, strict=False)]
    totals = (0, 0, 0)
    for turn, resumed in enumerate((None, resume)):
        drafter = ExpectedDrafter(rng, known.of, VOCAB_SIZE, wrong=(0.0, 0.2, 1.0, 0.1)[(2 * seed + turn) % 4])
        limits = {
            "num_blocks": num_groups * rng.choice((13, 16, 400)), "max_batch_tokens": rng.choice((40, 128, 512)),
            "max_chunk_tokens": rng.choice((None, 7, 16)), "max_running_requests": rng.choice((16, 32)),
            "max_model_len": 192, "overlap": (seed + turn) % 2 == 0,
        }  # fmt: skip
        with engine(folder, drafter, **{**options, **limits}) as llm:
            found = run(llm, requests, resumed)
            state = llm.scheduler_state()
            assert llm.check_integrity() == []
            counters = llm._service.client.loop.scheduler.counters  # type: ignore[attr-defined]
        for number, (result, right) in enumerate(zip(found, expected, strict=True)):
            place = f"request {number} of seed {seed}, run {turn}"
            if resumed is not None and number < COUNT and any(resumed[number]):
                check_resumed(result, right, digits)
                continue
            shown = f"{place}: {requests[number] if number < COUNT else 'embedding'}"
            assert visible(result, digits) == visible(right, digits), shown
            embedding, expected_embedding = (np.frombuffer(each.embedding, np.float32) for each in (result, right))
            np.testing.assert_allclose(embedding, expected_embedding, rtol=0, atol=0 if digits is None else 1e-5)
        made = (counters.draft_tokens, counters.confirmed_draft_tokens, state["preemptions"])
        totals = tuple(map(sum, zip(totals, made, strict=True)))  # type: ignore[assignment]
    return totals


@pytest.mark.share(2)
@pytest.mark.parametrize(("kind", "name"), each_value(["llama", "gemma3", "qwen3_5", "lfm2", "granite_hybrid"], MODELS))
def test_requests_show_the_same_with_drafts(kind: str, name: str, tmp_path: Path) -> None:
    if name != "torch float64":
        need_native()
    torch.set_num_threads(1)
    folder = tiny_with_text(kind, tmp_path)
    # One seed has two runs with drafts, of which one may be of a drafter that is always wrong.
    totals = [check_requests(folder, seed, **MODELS[name]) for seed in range(SEEDS)]
    drafts, confirmed, preemptions = map(sum, zip(*totals, strict=True))
    assert 0 < confirmed < drafts
    # Layers with a window give blocks back, so that those of the largest request suffice for many.
    assert preemptions > 0 or kind == "gemma3" or not FULL
