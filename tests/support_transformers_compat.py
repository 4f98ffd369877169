"""Managers of transformers' continuous batching over fake engines, and small models of transformers."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig, expected_tokens
from chairlift.llm.transformers_compat.engine_source import EngineSource
from chairlift.llm.transformers_compat.manager import ContinuousBatchingManager
from chairlift.llm.transformers_compat.settings import resolve_settings
from support_bridged_models import bridged_model
from support_models import tiny_hf_model

FAKE = FakeConfig(vocab_size=128, max_model_len=256, num_blocks=128, block_size=4)
SLOW = replace(FAKE, seconds_per_step=0.01)


def make_fake_manager(
    fake: FakeConfig = FAKE, *, hook: Any = None, scheduler: dict[str, Any] | None = None, eos: tuple[int, ...] = (),
    **knobs: Any,
) -> ContinuousBatchingManager:  # fmt: skip
    """Make a manager over a fake engine."""

    def engine() -> InlineClient:
        return InlineClient(EngineLoop(FakeRunner(fake, hook=hook), SchedulerConfig(**(scheduler or {}))))

    source = EngineSource(name="fake", settings=resolve_settings(None, None, knobs), eos_token_ids=eos, start=engine)
    return ContinuousBatchingManager.from_source(source)


@contextmanager
def fake_manager(
    fake: FakeConfig = FAKE, *, start: bool = True, **options: Any
) -> Iterator[ContinuousBatchingManager]:  # fmt: skip
    """Run a manager over a fake engine; at its end no request is open and no block is held."""
    manager = make_fake_manager(fake, **options)
    if start:
        manager.start()
    try:
        yield manager
        if (client := manager.client) is not None and manager.is_running() and not manager.open_requests:
            assert client.check_integrity() == []
            assert client.cache_state()["allocated_blocks"] == 0
    finally:
        if manager.is_running():
            manager.stop(hard_stop=True, timeout=20)
        manager.destroy()


def greedy_tokens(prompt: Sequence[int], count: int, fake: FakeConfig = FAKE, eos: Sequence[int] = ()) -> list[int]:
    """Return the greedy tokens of the fake engine."""
    params = SamplingParams(max_tokens=count, temperature=0).with_defaults({}, max_tokens=1, seed=0)
    return expected_tokens(prompt, params, fake, eos)


@cache
def float32_model(kind: str) -> Any:
    """Return a small model of transformers in float32."""
    make = tiny_hf_model if kind in {"llama", "qwen3"} else bridged_model
    return make(kind, dtype=torch.float32).eval()


def generated(model: Any, prompt: list[int], count: int) -> list[int]:
    """Return the greedy tokens of transformers' generate()."""
    with torch.inference_mode():
        output = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False)
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


def random_prompts(count: int, *, seed: int = 0, longest: int = 40, vocab: int = 120) -> list[list[int]]:
    """Return prompts of different lengths."""
    rng = random.Random(seed)
    return [[rng.randrange(3, vocab) for _ in range(rng.randrange(1, longest))] for _ in range(count)]
