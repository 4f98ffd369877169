"""Two ranks through the whole engine: the tokens of one rank and of transformers, and the ends of processes."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift import LLM, SamplingParams, StructuredOutput
from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import ConfigError, EngineDead, SamplingFailed
from chairlift.core.load_report import ReplicaState
from chairlift.engine.client.process import ProcessClient, start_engine_process
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.runner.base import RunnerSpec
from chairlift.engine.step_result import StepResult
from chairlift.llm.build import TENSOR_PARALLEL_RUNNER
from chairlift.llm.build_from_module import build_module_client
from chairlift.llm.builtin_models import RANDOM
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.distributed import rank_group, tensor_parallel_runner
from chairlift.model.distributed.tensor_parallel_runner import TensorParallelRunner, build, digest, rank_devices
from chairlift.model.layers.mlp import MLP
from support_forks import TORCH_MODULES, forked_children
from support_models import tiny_hf_model
from support_oracle import oracle, own_prompt, shared_prompt
from support_plans import int32
from support_process import FAST_LIVENESS, RecordingSink, has_ended, make_request, pid_of, wait_until
from support_ranks import rank_pids

OPTIONS: dict[str, Any] = {"dtype": "float64", "device": "cpu", "block_size": 4, "kernels": "torch"}
RUNNER = RunnerConfig(dtype="float64", device="cpu", num_blocks=200, tensor_parallel_size=2)
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
SAMPLED = [
    SamplingParams(temperature=1.1, top_p=0.9, seed=5, n=2, max_tokens=24, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.8, repetition_penalty=1.3, seed=-3, max_tokens=24, prompt_logprobs=1,
                   allowed_token_ids=list(range(8, 200))),
]  # fmt: skip


@pytest.fixture(autouse=True)
def forked_ranks() -> Iterator[None]:
    """Fork engines and the ranks of engines in this process; the ranks of started engine processes are started, too."""
    with forked_children(TORCH_MODULES):
        yield


def run_batch(llm: LLM, prompts: list[list[int]]) -> list[Any]:
    params = [*[GREEDY] * (len(prompts) - 2), *SAMPLED]
    return [
        [(choice.token_ids, choice.finish_reason) for choice in output.outputs]
        for output in llm.generate(prompts, params, use_tqdm=False)
    ]


@pytest.mark.share(1)
@pytest.mark.parametrize(("kind", "window", "overlap"), [
    ("llama", None, True), ("qwen3", None, False), ("gemma3", 20, True),
])  # fmt: skip
def test_two_ranks_generate_the_tokens_of_one_and_of_transformers(kind: str, window: int | None, overlap: bool) -> None:
    """With chunks, prefix hits, preemptions, and an aborted request."""
    reference = oracle(kind, window)
    prompts = [own_prompt(1, 41), shared_prompt(2, 40, 7), shared_prompt(3, 40, 3), own_prompt(4, 33), own_prompt(5, 9)]
    options = {**OPTIONS, "max_chunk_tokens": 16, "overlap": overlap, "max_model_len": 96}
    with LLM(str(reference.folder), num_blocks=900, **options) as one:
        expected = run_batch(one, [list(prompt) for prompt in prompts])
    for prompt, ((tokens, _),) in zip(prompts[:3], expected, strict=False):
        assert list(tokens) == reference.continuation(prompt, ignore_eos=True)
    num_blocks = 400 if window else 44  # without a window too few, so that sequences are preempted
    with LLM(str(reference.folder), num_blocks=num_blocks, tensor_parallel_size=2, **options) as two:
        sink, client = RecordingSink(), two._service.client
        client.submit(make_request("long", own_prompt(6, 20), max_tokens=70, ignore_eos=True), sink)
        sink.wait(lambda: len(sink.tokens.get("long", ())) > 3)
        client.abort("long")
        assert sink.end("long").finish_reason is FinishReason.ABORT
        for _ in range(2):  # the second time with the prefixes of the first
            assert run_batch(two, [list(prompt) for prompt in prompts]) == expected
        assert window or two.scheduler_state()["preemptions"] > 0
        assert client.load().cached_tokens > 40 and two.check_integrity() == []


@pytest.mark.full
def test_a_cache_of_8_bit_floats_gives_the_same_tokens_on_two_ranks_with_chunks_prefix_hits_and_preemptions() -> None:
    folder = str(oracle("llama", None).folder)
    prompts = [own_prompt(1, 41), shared_prompt(2, 40, 7), shared_prompt(3, 40, 3), own_prompt(4, 33), own_prompt(5, 9)]
    options = {**OPTIONS, "kv_cache_dtype": "fp8", "max_model_len": 96}
    with LLM(folder, num_blocks=900, enable_prefix_caching=False, **options) as one:
        expected = run_batch(one, [list(prompt) for prompt in prompts])
    with LLM(folder, num_blocks=44, max_chunk_tokens=16, tensor_parallel_size=2, **options) as two:
        for _ in range(2):
            assert run_batch(two, [list(prompt) for prompt in prompts]) == expected
        assert two.scheduler_state()["preemptions"] > 0 and two._service.client.load().cached_tokens > 40


@pytest.mark.full
def test_grammars_logprobs_and_processors_on_two_ranks() -> None:
    params = [
        SamplingParams(structured=StructuredOutput(regex="[a-z]{4,9}( [a-z]{4,9}){2}"), temperature=1.2, seed=3, n=2,
                       max_tokens=60),
        SamplingParams(structured=StructuredOutput(regex="(ab|cd)+e"), temperature=0, max_tokens=9, logprobs=4),
        SamplingParams(logits_processors={"top": {"top_k": 5}}, temperature=1.4, seed=8, max_tokens=24, logprobs=2),
    ]  # fmt: skip
    options = {**OPTIONS, "num_blocks": 200, "logits_processor_factories": {"top": "transformers:TopKLogitsWarper"}}
    results = []
    for ranks in (1, 2):
        with LLM(RANDOM, tensor_parallel_size=ranks, **options) as llm:
            assert llm.warmup() > 0
            results.append(llm.generate(["the sky is"] * 3, params, use_tqdm=False))
            with pytest.raises(Exception, match="outside the vocabulary"):
                llm.generate([[5, 999]], GREEDY, use_tqdm=False)
    for one, two in zip(*results, strict=True):
        assert [choice.text for choice in one.outputs] == [choice.text for choice in two.outputs]
        assert one.error is None and two.error is None
        for ours, theirs in zip(one.outputs[0].token_logprobs or (), two.outputs[0].token_logprobs or (), strict=True):
            assert ours.token_id == theirs.token_id and ours.logprob == pytest.approx(theirs.logprob, abs=1e-9)


@pytest.mark.share(1)
@pytest.mark.parametrize(("factory", "reason"), [
    ("differs_by_rank", "ranks 0, 1 sampled different tokens in one step"),
    ("breaks_layers_of_rank", r"rank 1 failed alone in a step: MemoryError\('this rank has no memory'\)"),
])  # fmt: skip
@pytest.mark.parametrize("overlap", [False, True])
def test_what_happens_on_one_rank_alone_ends_the_engine(
    factory: str, reason: str, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 waits in a collective for the rank whose layers fail, until that is killed."""
    monkeypatch.setattr(rank_group, "AGREEMENT_SECONDS", 0.5)
    options = {**OPTIONS, "overlap": overlap, "logits_processor_factories": {"alone": f"support_ranks:{factory}"}}
    with LLM(RANDOM, tensor_parallel_size=2, num_blocks=200, **options) as llm:
        params = SamplingParams(logits_processors="alone", max_tokens=20, ignore_eos=True)
        (output,) = llm.generate(["abc"], params, use_tqdm=False)
        assert isinstance(output.error, EngineDead) and re.search(reason, str(output.error))


@pytest.mark.share(1)
@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_without_memory_on_every_rank_is_run_in_smaller_ones(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MLP, "__call__", MLP.__call__)  # undo what the factory does in this process
    options = {**OPTIONS, "overlap": overlap, "num_blocks": 200}
    params = SamplingParams(temperature=1.1, seed=5, max_tokens=20, ignore_eos=True)
    prompts = ["the sky is", "b", "abcdefghijkl", "so", "it is", "no"]
    with LLM(RANDOM, **options) as llm:
        expected = [each.outputs[0].text for each in llm.generate(prompts, params, use_tqdm=False)]
    options |= {"logits_processor_factories": {"any": "support_ranks:breaks_large_steps"}}
    params = replace(params, logits_processors="any")
    with LLM(RANDOM, tensor_parallel_size=2, **options) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert [each.outputs[0].text for each in outputs] == expected
        assert llm.scheduler_state()["failed_steps"] > 0


def test_the_end_of_a_rank_ends_an_idle_engine_of_this_process() -> None:
    with LLM(RANDOM, tensor_parallel_size=2, num_blocks=200, **OPTIONS) as llm:
        (pid,) = rank_pids(os.getpid())
        os.kill(pid, signal.SIGKILL)
        client = llm._service.client
        wait_until(lambda: client.state is ReplicaState.DEAD)
        with pytest.raises(EngineDead, match=f"rank 1 of 2 is lost.*process {pid} was killed"):
            llm.generate(["abc"], GREEDY, use_tqdm=False)
    assert rank_pids(os.getpid()) == []


def answer(client: ProcessClient, name: str, sink: RecordingSink) -> list[int]:
    client.submit(make_request(name, (65, 66, 67), max_tokens=8, temperature=0.0), sink)
    assert sink.end(name).error is None
    return sink.tokens[name]


@pytest.mark.full
def test_an_engine_process_restarts_after_the_end_of_a_rank_and_no_rank_outlives_it() -> None:
    spec, sink = RunnerSpec(TENSOR_PARALLEL_RUNNER, RUNNER.encode()), RecordingSink()
    client = start_engine_process(spec, SchedulerConfig(), watch=FAST_LIVENESS)
    try:
        tokens = answer(client, "first", sink)
        (rank,) = rank_pids(pid_of(client))
        client.submit(make_request("long", (65, 66), max_tokens=900, ignore_eos=True), sink)
        sink.wait(lambda: "long" in sink.tokens)
        os.kill(rank, signal.SIGKILL)
        error = sink.end("long").error
        assert isinstance(error, EngineDead) and f"process {rank} was killed" in str(error)
        wait_until(lambda: client.restarts == 1 and client.state is ReplicaState.READY)
        assert answer(client, "second", sink) == tokens
        (rank,) = rank_pids(pid_of(client))
        os.kill(pid_of(client), signal.SIGKILL)
        wait_until(lambda: has_ended(rank))
    finally:
        client.close()
    assert rank_pids(os.getpid()) == []


@pytest.mark.parametrize(("options", "sentence"), [
    ({"tensor_parallel_size": 3}, "tensor_parallel_size is 3, but the model's 4 query heads cannot be shared evenly"),
    ({"tensor_parallel_size": 8}, "tensor_parallel_size is 8, but the model's 4 query heads cannot be shared evenly"),
    ({"tensor_parallel_size": 0}, "tensor_parallel_size must be at least 1, got 0"),
    ({"tensor_parallel_size": 2, "quantization": "int8"}, "but quantization 'int8' runs on one rank only"),
    ({"tensor_parallel_size": 2, "kernels": "native"}, "but kernels 'native' runs on one rank only"),
    ({"tensor_parallel_size": 2, "model_impl": "transformers"}, "but model_impl 'transformers' runs on one rank only"),
])  # fmt: skip
def test_what_ranks_cannot_run_is_refused_before_a_process_starts(
    options: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chairlift.model.distributed.rank_group.RankProcess", None)
    with pytest.raises(ConfigError, match=sentence) as caught:
        LLM(RANDOM, device="cpu", **options)
    assert caught.value.details["option"] == "tensor_parallel_size"


PROCESSORS = """
import torch

def only(token):
    def process(input_ids, scores):
        return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([token]), 1.0)
    return process
"""
SCRIPT = """
from chairlift import LLM, SamplingParams
from chairlift.core.errors import ConfigError

def own():
    ...

if __name__ == "__main__":
    options = {"tensor_parallel_size": 2, "device": "cpu", "kernels": "torch", "num_blocks": 50}
    for path in ("__main__:own", "processors_of_script:only"):
        try:
            with LLM("chairlift:random", logits_processor_factories={"only": path}, **options) as llm:
                params = SamplingParams(logits_processors={"only": {"token": 113}}, max_tokens=5)
                (output,) = llm.generate(["abc"], params, use_tqdm=False)
                print(output.error or output.outputs[0].text)
        except ConfigError as error:
            print(error)
"""


@pytest.mark.full
def test_ranks_find_a_logits_processor_beside_the_script(tmp_path: Path) -> None:
    """The script runs in another folder. Its own functions are on rank 0 only, which is said before a rank starts."""
    folder = tmp_path / "a script's f\u00f6lder"
    folder.mkdir()
    (folder / "processors_of_script.py").write_text(PROCESSORS, encoding="utf-8")
    (folder / "script.py").write_text(SCRIPT.replace("chairlift:random", RANDOM), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(folder / "script.py")], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    refused, text = done.stdout.splitlines()
    assert refused == (
        "logits processor 'only' at '__main__:own' is in the script itself, which only rank 0 runs; move it to a "
        "module beside the script, or set tensor_parallel_size to 1"
    )
    assert text == "q" * 5, done.stderr


def test_a_loaded_module_runs_on_one_rank() -> None:
    with pytest.raises(ConfigError, match="tensor_parallel_size is 2, a loaded model runs on one device"):
        build_module_client(tiny_hf_model("llama"), {"tensor_parallel_size": 2})


def test_an_error_of_rank_0_at_the_start_ends_the_others() -> None:
    runner = TensorParallelRunner(RunnerConfig(device="cpu", num_blocks=2**40, tensor_parallel_size=2))
    with pytest.raises(ConfigError, match=r"num_blocks 1099511627776 needs .* shared by 2 ranks"):
        runner.start()
    assert rank_pids(os.getpid()) == []
    runner.stop()


def test_a_digest_covers_tokens_and_failed_rows() -> None:
    runner = build(RunnerConfig(device="cpu").encode())
    assert isinstance(runner, TensorParallelRunner)
    base = StepResult(1, int32(4, 5), int32(0, 1, 2))
    failed = StepResult(1, int32(4, 5), int32(0, 1, 2), row_errors=((1, SamplingFailed("x")),))
    assert len({digest(base), digest(failed), digest(StepResult(1, int32(5, 4), int32(0, 1, 2)))}) == 3


def test_each_rank_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rank_devices("cpu", 3) == ["cpu"] * 3
    monkeypatch.setattr(tensor_parallel_runner, "pick_device", torch.device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert rank_devices("cuda", 2) == ["cuda:0", "cuda:1"]
    with pytest.raises(ConfigError, match="tensor_parallel_size is 3, but the machine has 2 GPUs"):
        rank_devices("cuda", 3)
    for name in ("cuda:1", "mps"):
        with pytest.raises(ConfigError, match=f"tensor_parallel_size is 2, but device is '{name}'"):
            rank_devices(name, 2)
