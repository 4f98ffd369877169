"""mixed_workload, run_mixed: many requests of mixed lengths through the whole engine in this process."""

import random
from contextlib import closing
from dataclasses import asdict, replace
from random import Random
from typing import Any

from chairlift.bench.offline.driver import drive_workload
from chairlift.bench.offline.warm_up import warm_up
from chairlift.bench.workload.generators import between
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.llm.text_service import TextService
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.runner.torch_runner import TorchRunner
from gpu_bench.runner_steps import runner_facts

SEED = 0


def mixed_workload(num_requests: int, lengths: tuple[int, int], vocab_size: int) -> Workload:
    """Draw requests that arrive at once; the lengths of prompts and outputs are uniform in `lengths`, both included.

    The lengths do not depend on the vocabulary, and fewer requests are the first of more.
    """
    rng, items = Random(f"mixed {SEED}"), []
    for number in range(num_requests):
        num_prompt, num_output = between(rng, *lengths), between(rng, *lengths)
        ids = Random(f"mixed {SEED} {number}")
        prompt = tuple(int(ids.random() * vocab_size) for _ in range(num_prompt))
        items.append(WorkloadRequest(at=0.0, prompt_token_ids=prompt, output_tokens=num_output))
    return Workload(name="mixed", seed=SEED, items=tuple(items))


def shortened(workload: Workload, num_requests: int, max_outputs: int) -> Workload:
    """Return the first requests of a workload, each with at most so many output tokens."""
    items = [
        replace(item, output_tokens=min(item.output_tokens, max_outputs)) for item in workload.items[:num_requests]
    ]
    return replace(workload, items=tuple(items))


def run_mixed(
    loaded: LoadedModel, workload: Workload, max_model_len: int, limit: float, *, overlap: bool = True, **options: Any
) -> dict[str, Any]:
    """Run a workload greedily through an engine of its own; requests are cut off after `limit` seconds.

    `options` are further fields of the RunnerConfig. Returns tokens, seconds and output tokens per second.
    """
    scheduler = SchedulerConfig(overlap=overlap, max_running_requests=max(len(workload.items), 1))
    config = RunnerConfig(
        device=str(loaded.device), dtype="bfloat16", max_running_requests=scheduler.max_running_requests,
        max_batch_tokens=scheduler.max_batch_tokens, max_model_len=max_model_len, **options,
    )  # fmt: skip
    client = InlineClient(EngineLoop(TorchRunner(config, loaded), scheduler))
    with closing(client):
        service = TextService(
            client=client, tokenizer=None, chat_template=None, defaults=ModelDefaults(), model=loaded.model_id,
            max_queue_size=scheduler.max_queue_size, seeds=random.Random(SEED),
        )  # fmt: skip
        warm_up(service)
        items = tuple(replace(item, timeout=limit) for item in workload.items)
        driven = drive_workload(service, replace(workload, items=items))
        info = client.info
    num_tokens = sum(record.output_tokens for record in driven.records)
    return {
        "requests": len(workload.items), "prompt_tokens": workload.prompt_tokens, "output_tokens": num_tokens,
        "output_tokens_of_workload": workload.output_tokens, "digest": workload.digest(), "seconds": driven.seconds,
        "output_tokens_per_second": num_tokens / driven.seconds, "is_complete": num_tokens == workload.output_tokens,
        "errors": sorted({record.error for record in driven.records if record.error}),
        "engine": {
            **asdict(scheduler), "num_blocks": info.num_blocks, "block_size": info.block_size,
            "runner": runner_facts(info),
        },
    }  # fmt: skip
