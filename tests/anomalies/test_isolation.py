"""A request that fails does not change the tokens of other requests: real models, float64, whole engine."""

from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from chairlift import LLM, SamplingParams
from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import DuplicateRequestId, ForwardFailed, NonFiniteLogits, SamplingFailed, TokenOutOfRange
from chairlift.core.request import GenerateRequest
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.runner.model_loading import load
from chairlift.model.runner.torch_runner import TorchRunner
from chairlift.model.sampling.sampling_state import RowLogitsProcessor
from support_models import save_tiny
from support_oracle import own_prompt

POISON = 5
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1, seed=4, max_tokens=20, ignore_eos=True, logit_bias={POISON: -100})
NEIGHBOURS = [list(own_prompt(number, 5 + 7 * number)) for number in range(6)]
PARAMS = [GREEDY if number % 2 else SAMPLED for number in range(6)]
FAILING_PROMPT = [9, 9, POISON, 9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose embedding of the token POISON is NaN."""
    results = save_tiny("llama", tmp_path_factory.mktemp("poisoned"), 0)
    weights = load_file(results / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON] = float("nan")
    save_file(weights, results / "model.safetensors", metadata={"format": "pt"})
    return results


@pytest.fixture(params=[False, True], ids=["plain", "overlap"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"dtype": "float64", "num_blocks": 120, "block_size": 4, "overlap": request.param}


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    with LLM(folder, dtype="float64", num_blocks=120, block_size=4) as llm:
        return tokens(llm.generate(NEIGHBOURS, PARAMS, use_tqdm=False))


def tokens(outputs: list[Any]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def run_with_failing_request(llm: LLM, failed: SamplingParams = GREEDY) -> tuple[Any, list[Any]]:
    prompts, params = [*NEIGHBOURS[:3], FAILING_PROMPT, *NEIGHBOURS[3:]], [*PARAMS[:3], failed, *PARAMS[3:]]
    results = llm.generate(prompts, params, use_tqdm=False)
    return results[3], results[:3] + results[4:]


@pytest.mark.full
def test_nan_logits_fail_one_request(folder: Path, options: dict[str, Any], expected: list[list[int]]) -> None:
    with LLM(folder, **options) as llm:
        for _ in range(2):  # the second time with the blocks that had the NaN
            failed, neighbours = run_with_failing_request(llm)
            assert isinstance(failed.error, NonFiniteLogits)
            assert failed.outputs[0].finish_reason == "error"
            assert tokens(neighbours) == expected
            assert llm.check_integrity() == []
        llm.flush_cache()
        repeated = llm.generate(NEIGHBOURS * 3, PARAMS * 3, use_tqdm=False)
        assert tokens(repeated) == expected * 3


class FailingModel:
    """A CausalLM whose forward raises when it reads POISON."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, input_ids: Tensor, context: Any) -> Tensor:
        if (input_ids == POISON).any():
            raise RuntimeError("out of memory")
        return self._model.forward(input_ids, context)


@pytest.fixture
def failing_client(folder: Path, options: dict[str, Any]) -> Iterator[InlineClient]:
    config = RunnerConfig(model=str(folder), dtype="float64", num_blocks=120, block_size=4)
    loaded = load(config)
    failed = LoadedModel(FailingModel(loaded.model), loaded.config, loaded.device, "failing")  # type: ignore[arg-type]
    client = InlineClient(EngineLoop(TorchRunner(config, failed), SchedulerConfig(overlap=options["overlap"])))
    yield client
    client.close()


def collect(client: InlineClient, prompts: list[list[int]], params: list[SamplingParams]) -> list[Any]:
    """Run requests on a client; returns the tokens and the final output of each."""
    outputs: SimpleQueue[Any] = SimpleQueue()
    for number, (prompt, sampling_params) in enumerate(zip(prompts, params, strict=True)):
        resolved = sampling_params.with_defaults({}, max_tokens=20, seed=0)
        client.submit(
            GenerateRequest(request_id=str(number), prompt_token_ids=tuple(prompt), params=resolved), outputs.put
        )
    results: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    last: dict[str, Any] = {}
    while len(last) < len(prompts):
        for output in outputs.get(timeout=60):
            results[output.request_id] += output.token_ids
            if output.finish_reason is not None:
                assert output.request_id not in last
                last[output.request_id] = output
    return [(results[name], last[name]) for name in results]


def test_a_forward_that_raises_fails_the_culprit_alone(failing_client: InlineClient, expected: list[list[int]]) -> None:
    results = collect(
        failing_client,
        [*NEIGHBOURS[:3], FAILING_PROMPT, *NEIGHBOURS[3:], FAILING_PROMPT[1:]],
        [*PARAMS[:3], GREEDY, *PARAMS[3:], SAMPLED],
    )
    for failed in (results.pop(7), results.pop(3)):
        assert isinstance(failed[1].error, ForwardFailed)
    assert [sampling_params for sampling_params, _ in results] == expected
    assert failing_client.scheduler_state()["failed_steps"] > 1
    assert failing_client.check_integrity() == []


def test_a_request_that_bans_every_token_fails_alone(
    folder: Path, options: dict[str, Any], expected: list[list[int]]
) -> None:
    with LLM(folder, **options) as llm:
        failed, neighbours = run_with_failing_request(
            llm, SamplingParams(max_tokens=5, logit_bias=dict.fromkeys(range(304), -100))
        )
        assert isinstance(failed.error, NonFiniteLogits), "its prompt has POISON, too"
        assert tokens(neighbours) == expected
        banned = SamplingParams(max_tokens=5, logit_bias=dict.fromkeys(range(304), -100))
        results = llm.generate([*NEIGHBOURS, [8, 9]], [*PARAMS, banned], use_tqdm=False)
        assert isinstance(results[-1].error, SamplingFailed)
        assert tokens(results[:-1]) == expected


def test_a_sampler_that_raises_fails_one_request(
    folder: Path, options: dict[str, Any], expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real_bans = RowLogitsProcessor.bans

    def bans(processor: RowLogitsProcessor, num_outputs: int) -> Any:
        if processor._min_tokens == 3 and num_outputs == 2:
            raise RuntimeError("a sampler's fault")
        return real_bans(processor, num_outputs)

    monkeypatch.setattr(RowLogitsProcessor, "bans", bans)
    failing_params = SamplingParams(temperature=0, max_tokens=9, min_tokens=3, stop_token_ids=(8,))
    with LLM(folder, **options) as llm:
        results = llm.generate([*NEIGHBOURS, [8, 9]], [*PARAMS, failing_params], use_tqdm=False)
        assert isinstance(results[-1].error, SamplingFailed)
        assert len(results[-1].outputs[0].token_ids) == 2
        assert tokens(results[:-1]) == expected
        assert llm.check_integrity() == []


def test_an_id_outside_the_vocabulary_raises_before_anything_is_queued(folder: Path, options: dict[str, Any]) -> None:
    with LLM(folder, **options) as llm:
        for invalid in ([304], [-1], [2**63]):
            with pytest.raises(TokenOutOfRange, match="304"):
                llm.generate([*NEIGHBOURS, invalid], GREEDY, use_tqdm=False)
        assert llm.scheduler_state()["steps"] == 0


def test_a_duplicate_id_is_refused_and_the_first_goes_on(
    failing_client: InlineClient, expected: list[list[int]]
) -> None:
    outputs: SimpleQueue[Any] = SimpleQueue()
    params = PARAMS[1].with_defaults({}, max_tokens=20, seed=0)
    request = GenerateRequest(request_id="twice", prompt_token_ids=tuple(NEIGHBOURS[1]), params=params)
    failing_client.submit(request, outputs.put)
    with pytest.raises(DuplicateRequestId, match="twice"):
        failing_client.submit(request, outputs.put)
    results: list[int] = []
    while True:
        (output,) = outputs.get(timeout=60)
        results += output.token_ids
        if output.finish_reason is not None:
            break
    assert output.finish_reason is FinishReason.LENGTH
    assert results == expected[1]
