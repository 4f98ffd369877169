"""attach: a loaded model of transformers generates by Chairlift's engine, with its own parameters."""

import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift.core.errors import ConfigError, UnknownOption, UnsupportedArchitecture
from chairlift.engine import engine_loop
from chairlift.llm.transformers_compat.attach import attach
from chairlift.llm.transformers_compat.manager import ContinuousBatchingManager
from chairlift.llm.transformers_compat.request_status import RequestStatus
from support_bridged_models import bridged_model
from support_drafters import ExpectedDrafter
from support_models import EOS_TOKEN_IDS, VOCAB_SIZE, save_tiny, tiny_hf_model
from support_transformers_compat import float32_model, generated, random_prompts

TESTS = Path(__file__).parents[2]
PROMPTS = random_prompts(5, vocab=290)


@pytest.fixture
def model() -> Any:
    return attach(bridged_model("gpt2", dtype=torch.float32).eval())


@pytest.mark.full
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2", "gemma2"])
def test_a_batch_has_the_tokens_of_generate(kind: str) -> None:
    model = attach(float32_model(kind))
    outputs = model.generate_batch(PROMPTS, max_new_tokens=12, warmup=False)
    assert [output.prompt_ids for output in outputs.values()] == PROMPTS
    assert [output.generated_tokens for output in outputs.values()] == [
        generated(model, prompt, 12) for prompt in PROMPTS
    ]
    assert {output.status for output in outputs.values()} == {RequestStatus.FINISHED}


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_drafts_change_no_token_of_a_manager(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of requests that stream, too; each of their outputs has all tokens so far."""
    make = tiny_hf_model if kind == "llama" else bridged_model
    model = attach(make(kind, dtype=torch.float64).eval())
    expected = {tuple(prompt): generated(model, prompt, 12) for prompt in PROMPTS}
    drafter = ExpectedDrafter(
        random.Random(1), lambda sequence: expected[sequence.request.prompt_token_ids], VOCAB_SIZE, wrong=0.2
    )
    monkeypatch.setattr(engine_loop, "make_drafters", lambda config: (drafter,))
    with model.continuous_batching_context_manager(max_new_tokens=12, warmup=False) as manager:
        names = manager.add_requests(PROMPTS[1:], max_new_tokens=12)
        manager.add_request(PROMPTS[0], "stream", streaming=True)
        streamed = [output.generated_tokens for output in manager.request_id_iter("stream")]
        found = [manager.get_result(name, timeout=60).generated_tokens for name in names]
        assert manager.client.loop.scheduler.counters.confirmed_draft_tokens > 0
    assert found == [expected[tuple(prompt)] for prompt in PROMPTS[1:]]
    whole = expected[tuple(PROMPTS[0])]
    assert streamed[-1] == whole and all(whole[: len(each)] == each for each in streamed)


def test_the_class_the_attention_and_the_parameters_stay_as_they_are(model: Any) -> None:
    before = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    attention, other = model.config._attn_implementation, bridged_model("gpt2", dtype=torch.float32)
    model.generate_batch(PROMPTS[:2], max_new_tokens=3, warmup=False)
    assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == before
    assert model.config._attn_implementation == attention
    assert "init_continuous_batching" not in vars(type(model)) and not hasattr(other, "__wrapped__")
    assert type(other).generate_batch is not type(model.generate_batch)
    assert model.training is False


def test_weights_that_change_during_a_pause_are_those_of_the_next_step(model: Any) -> None:
    prompt = PROMPTS[3]
    manager = model.init_continuous_batching(max_new_tokens=8)
    manager.start()
    before = generated(model, prompt, 8)
    found = []
    for is_changed in (False, True):
        with manager.pause():
            if is_changed:
                with torch.no_grad():
                    model.transformer.wte.weight.copy_(model.transformer.wte.weight.flip(0))
        manager.add_request(prompt, "r")
        found.append(manager.get_result("r", timeout=60).generated_tokens)
    manager.stop()
    assert found == [before, generated(model, prompt, 8)] and found[0] != found[1]


def test_the_context_manager_finishes_what_is_open_and_ends_on_an_error(model: Any) -> None:
    with model.continuous_batching_context_manager(max_new_tokens=4, warmup=False) as manager:
        manager.add_requests(PROMPTS)
    assert not manager.is_running()
    assert sum(output.is_finished() for output in iter(manager.get_result, None)) == len(PROMPTS)
    threads = threading.active_count()
    managers = []

    def fail_inside() -> None:
        with model.continuous_batching_context_manager(warmup=False) as failing:
            managers.append(failing)
            failing.add_request(PROMPTS[0], "r", max_new_tokens=900, eos_token_id=-1)
            raise ValueError("in the block")

    with pytest.raises(ValueError, match="in the block"):
        fail_inside()
    assert not managers[0].is_running() and managers[0].get_result("r").status is RequestStatus.FAILED
    assert threading.active_count() == threads


def test_a_persistent_manager_serves_the_next_session(model: Any) -> None:
    prompt = [7] * 40
    first = model.generate_batch([prompt], max_new_tokens=2, persistent_manager=True, warmup=False)
    kept = model._cached_continuous_batching_manager
    assert isinstance(kept, ContinuousBatchingManager) and not kept.is_running()
    assert model.init_continuous_batching() is kept
    second = model.generate_batch([prompt], max_new_tokens=2, persistent_manager=True, warmup=False)
    (one,), (other,) = first.values(), second.values()
    assert one.num_cached_tokens == other.num_cached_tokens == 0  # the weights might have changed
    assert one.generated_tokens == other.generated_tokens
    with torch.no_grad():
        model.transformer.wte.weight.copy_(model.transformer.wte.weight.flip(0))
    (changed,) = model.generate_batch([prompt], max_new_tokens=2, persistent_manager=True, warmup=False).values()
    assert changed.generated_tokens == generated(model, prompt, 2)
    second_manager = ContinuousBatchingManager(model, max_new_tokens=2)  # beside a manager that is kept on the model
    second_manager.start()
    second_manager.add_request(prompt, "r")
    assert second_manager.get_result("r").generated_tokens == changed.generated_tokens
    second_manager.stop()
    model.destroy_cached_continuous_batching_manager()
    assert kept.client is None and not hasattr(model, "_cached_continuous_batching_manager")
    model.destroy_cached_continuous_batching_manager()


def test_one_bad_prompt_of_a_batch_fails_alone(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    outputs = list(model.generate_batch([PROMPTS[0], [10**6], PROMPTS[1]], max_new_tokens=3, warmup=False).values())
    assert [output.error is None for output in outputs] == [True, False, True]
    assert "vocabulary" in outputs[1].error and "1 of 3 requests failed" in caplog.text


def test_several_sequences_of_a_prompt_and_an_empty_batch(model: Any) -> None:
    options = {"do_sample": True, "num_return_sequences": 3, "seed": 5}
    outputs = model.generate_batch(PROMPTS[:2], max_new_tokens=6, warmup=False, record_timestamps=True, **options)
    assert list(outputs) == [
        "req_0__child#0", "req_0__child#1", "req_0", "req_1__child#0", "req_1__child#1", "req_1"
    ]  # fmt: skip
    assert len({tuple(outputs[f"req_0{end}"].generated_tokens) for end in ("", "__child#0", "__child#1")}) == 3
    assert all(len(output.timestamps or ()) == len(output.generated_tokens) for output in outputs.values())
    assert model.generate_batch([]) == {}


@pytest.mark.full
def test_progress_goes_to_standard_error(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model.generate_batch(torch.tensor([[5, 6, 7]]), max_new_tokens=2, progress_bar=True, warmup=True)
    captured = capsys.readouterr()
    assert captured.out == "" and "1/1" in captured.err


def test_options_that_cannot_be_used_are_refused_before_anything_starts(model: Any) -> None:
    with pytest.raises(UnknownOption, match="did you mean 'num_blocks'"):
        model.init_continuous_batching(num_block=4)
    with pytest.raises(ConfigError, match="num_beams=4 is not supported: there is no beam search"):
        model.generate_batch(PROMPTS, num_beams=4)
    with pytest.raises(ConfigError, match="scheduler_type must be 'fifo' or 'prefill_first'"):
        model.init_continuous_batching(scheduler_type="lifo")
    with pytest.raises(ConfigError, match="does not stream"):
        model.generate_batch(PROMPTS, streaming=True)


def test_a_model_that_cannot_run_says_why() -> None:
    import transformers

    config = transformers.BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    manager = ContinuousBatchingManager(transformers.BertForMaskedLM(config).eval())
    with pytest.raises(UnsupportedArchitecture):
        manager.start()
    assert not manager.is_running()


@pytest.mark.full
def test_a_folder_runs_natively_and_without_transformers(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path, seed=3)
    prompt = [5, 6, 7, 8]
    expected = generated(tiny_hf_model("llama", seed=3), prompt, 10)
    script = f"""
import sys
sys.modules["transformers"] = None
from chairlift import ContinuousBatchingManager
manager = ContinuousBatchingManager({str(folder)!r}, max_new_tokens=10, dtype="float64", eos_token_id=-1)
manager.start()
manager.add_request({prompt}, "r")
print(manager.get_result("r").generated_tokens)
manager.stop()
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=TESTS, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    tokens = [int(token) for token in ended.stdout.strip(" []\n").split(", ")]
    cut = next((index + 1 for index, token in enumerate(tokens) if token in EOS_TOKEN_IDS), 10)
    assert tokens[:cut] == expected[:cut]


@pytest.mark.full  # test_manager_threads.py has such scripts, too
def test_a_script_that_forgets_to_stop_ends(tmp_path: Path) -> None:
    script = """
import chairlift, torch
from support_bridged_models import bridged_model
model = chairlift.attach(bridged_model("gpt2", dtype=torch.float32).eval())
manager = model.init_continuous_batching(max_new_tokens=900)
manager.start()
manager.add_requests([[5, 6, 7]] * 8)
print("end of the script", flush=True)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=TESTS, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0 and "end of the script" in ended.stdout, ended.stderr
