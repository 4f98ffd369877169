"""Tokens with LoRA adapters do not depend on the scheduling: random runs against each request alone, in float64.

Each request has the model alone or one of two adapters. `make test-all` takes 1,000 seeds, `make test` a few.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

from chairlift.core.adapter_version import NO_ADAPTER, AdapterVersion
from chairlift.core.engine_output import EngineOutput
from chairlift.core.request import GenerateRequest
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.base import Runner, RunnerInfo
from chairlift.model.config.architectures.config_parsing import read_decoder_config
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.runner.torch_runner import TorchRunner
from support_adapters import ADAPTER_KINDS, adapted_model
from support_engine import submit
from support_models import VOCAB_SIZE, save_tiny, tiny_hf_model
from support_scheduling_runs import MAX_MODEL_LEN, MakeRunner, Played, SchedulingRun, alone, check_run, scheduling_run
from support_shares import FULL

SEEDS, SHARE, PARTS = 1000, 20, 20
KINDS = ("qwen3", "gemma3")
ADAPTERS = ("all", "saved")
PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@cache
def folders(kind: str) -> tuple[Path, list[Path]]:
    """Return the folder of a model, and those of its adapters."""
    base, made = Path(mkdtemp()), [Path(mkdtemp()) for _ in ADAPTERS]
    save_tiny(kind, base, seed=5)
    for number, folder in enumerate(made, 1):
        adapted(kind, number).save_pretrained(folder)
    return base, made


@cache
def adapted(kind: str, number: int) -> Any:
    """Return PEFT's model with the adapter of a number."""
    names = {f"model.layers.{layer}.{part}.{name}" for layer in range(8) for part in ("self_attn", "mlp")
             for name in PROJECTIONS}  # fmt: skip
    return adapted_model(kind, 5, ADAPTER_KINDS[ADAPTERS[number - 1]], number, names)


class AdaptedRunner(TorchRunner):
    """A runner that has loaded the adapters of its model as numbers 1 and 2."""

    def __init__(self, config: RunnerConfig, adapters: list[Path]) -> None:
        super().__init__(config)
        self._adapters = adapters

    def start(self) -> RunnerInfo:
        info = super().start()
        for number, folder in enumerate(self._adapters, 1):
            self.load_adapter(number, str(folder))
        return info


def make_runner_of(kind: str) -> MakeRunner:
    base, adapters = folders(kind)

    def make_runner(num_blocks: int, block_size: int, max_batch_tokens: int) -> Runner:
        config = RunnerConfig(
            model=str(base), dtype="float64", device="cpu", block_size=block_size, num_blocks=num_blocks,
            max_batch_tokens=max_batch_tokens, max_running_requests=16, enable_lora=True,
        )  # fmt: skip
        return AdaptedRunner(config, adapters)

    return make_runner


def run_of(seed: int, num_groups: int) -> SchedulingRun:
    """Return the run of a seed, whose requests have adapters."""
    run, rng = scheduling_run(seed, num_groups), Random(f"adapters {seed}")
    versions = (NO_ADAPTER, AdapterVersion(1, "first"), AdapterVersion(2, "second"))
    return replace(run, requests=tuple(replace(each, adapter=rng.choice(versions)) for each in run.requests))


@cache
def num_groups(kind: str) -> int:
    """Return the number of layer groups of a model."""
    return len(read_decoder_config(folders(kind)[0]).layer_groups.windows)


def check_seed(seed: int) -> Played:
    kind = KINDS[seed % len(KINDS)]
    run, make_runner = run_of(seed, num_groups(kind)), make_runner_of(kind)
    return check_run(run, make_runner, alone(run, make_runner))


@pytest.mark.share(2)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_request_has_the_tokens_that_it_has_alone(part: int) -> None:
    torch.set_num_threads(1)
    size = (SEEDS if FULL else SHARE) // PARTS
    played = [check_seed(seed) for seed in range(part * size, (part + 1) * size)]
    if FULL:
        assert sum(each.preemptions for each in played) > 0
        assert any(last.usage.cached_tokens for each in played for last in each.last.values())


def test_logprobs_of_prompts_and_outputs_are_those_of_each_request_s_own_adapter() -> None:
    """One step computes all of them; the second adapter has another lm_head."""
    torch.set_num_threads(1)
    theirs = [tiny_hf_model("qwen3", 5), *(adapted("qwen3", number) for number in (1, 2))]
    versions = (NO_ADAPTER, AdapterVersion(1, "first"), AdapterVersion(2, "second"))
    prompts = [tuple(Random(number).randrange(8, VOCAB_SIZE) for _ in range(30)) for number in range(3)]
    params = SamplingParams(temperature=0.0, max_tokens=3, prompt_logprobs=0, logprobs=0, ignore_eos=True)
    loop = EngineLoop(make_runner_of("qwen3")(200, 8, 512), SchedulerConfig(max_model_len=MAX_MODEL_LEN))
    loop.start()
    outputs: dict[str, list[EngineOutput]] = {}
    for place, (prompt, version) in enumerate(zip(prompts, versions, strict=True)):
        resolved = params.with_defaults({}, max_tokens=3, seed=0)
        submit(loop, GenerateRequest(request_id=f"{place}", prompt_token_ids=prompt, params=resolved, adapter=version))
    while not loop.is_idle:
        for output in loop.step():
            outputs.setdefault(output.request_id, []).append(output)
    loop.stop()
    for place, (model, prompt) in enumerate(zip(theirs, prompts, strict=True)):
        whole = EngineOutput.merged(outputs[f"{place}"])
        assert whole.error is None
        tokens = [*prompt, *whole.token_ids]
        with torch.inference_mode():
            right = model(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
        entries = [*whole.prompt_logprobs, *(whole.logprobs or ())]
        assert [entry.token_id for entry in entries] == tokens[1:]
        for at, entry in enumerate(entries):
            assert abs(entry.logprob - float(right[at, tokens[at + 1]])) < 1e-5
        assert list(whole.token_ids) == right[len(prompt) - 1 : -1].argmax(-1).tolist()


def test_an_adapter_changes_the_tokens_and_a_prefix_is_not_shared_with_the_model() -> None:
    """The second request of each pair has the prompt of the first one; with other digests no block is shared."""
    torch.set_num_threads(1)
    seed = 3
    run, make_runner = scheduling_run(seed), make_runner_of("qwen3")
    first = replace(run.requests[0], prompt_token_ids=tuple(range(10, 40)), tenant="")
    params = replace(first.params, temperature=0.0, max_tokens=8, ignore_eos=True)
    versions = (NO_ADAPTER, AdapterVersion(1, "first"), AdapterVersion(2, "second"))
    requests = tuple(
        replace(first, request_id=f"r{place}", params=params, eos_token_ids=(), adapter=version)
        for place, version in enumerate((*versions, *versions))
    )
    arrivals = tuple(100 * place for place in range(len(requests)))
    one = replace(
        run, requests=requests, arrivals=arrivals, aborts={}, block_size=4, num_blocks=200, enable_prefix_caching=True
    )
    played = check_run(one, make_runner, alone(one, make_runner))
    assert len({tuple(played.tokens[f"r{place}"]) for place in range(3)}) == 3
    assert [played.last[f"r{place}"].usage.cached_tokens for place in range(6)] == [0, 0, 0, 28, 28, 28]
