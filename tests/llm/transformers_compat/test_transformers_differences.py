"""docs/from-transformers.md: what it says differs does; a row without a check, or a check without a row, fails."""

import asyncio
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from chairlift.core.errors import ConfigError, DuplicateRequestId, EngineDead, UnknownOption
from chairlift.llm.transformers_compat import manager as manager_module
from chairlift.llm.transformers_compat.attach import attach
from chairlift.llm.transformers_compat.generation_output import GenerationOutput
from chairlift.llm.transformers_compat.manager import ContinuousBatchingManager
from chairlift.llm.transformers_compat.request_status import RequestStatus
from chairlift.llm.transformers_compat.settings import resolve_settings
from support_doc_tables import table
from support_transformers_compat import (
    FAKE,
    SLOW,
    fake_manager,
    float32_model,
    generated,
    greedy_tokens,
    make_fake_manager,
)

PAGE = "from-transformers.md"
WAIT = 60.0


def result(manager: ContinuousBatchingManager, prompt: list[int], **options: Any) -> GenerationOutput:
    """Run one request to its end."""
    output = manager.get_result(manager.add_request(prompt, **options), timeout=WAIT)
    assert output is not None and output.is_finished()
    return output


def llama_manager(**options: Any) -> AbstractContextManager[ContinuousBatchingManager]:
    """Run a manager of a small Llama model."""
    managed: AbstractContextManager[ContinuousBatchingManager] = attach(
        float32_model("llama")
    ).continuous_batching_context_manager(**options)
    return managed


def fails_alone(error: str, prompt: list[int], **options: Any) -> Callable[[], None]:
    """Return a check that this request fails with the error while its neighbour and the next request finish."""

    def check() -> None:
        with fake_manager(SLOW) as manager:
            neighbour = manager.add_request([1, 2], max_new_tokens=9)
            failed = result(manager, prompt, **options)
            assert failed.status is RequestStatus.FAILED and re.search(error, failed.error or "")
            assert result(manager, [3], max_new_tokens=2).error is None
            finished = manager.get_result(neighbour, timeout=WAIT)
            assert finished is not None and finished.generated_tokens == greedy_tokens([1, 2], 9)

    return check


def check_unlimited() -> None:
    with fake_manager() as manager:
        output = result(manager, [1, 2])
        assert (len(output.generated_tokens), output.finish_reason) == (254, "length")


def check_duplicates() -> None:
    with fake_manager(SLOW) as manager:
        manager.add_request([1, 2], "one", max_new_tokens=9)
        with pytest.raises(DuplicateRequestId):
            manager.add_request([3], "one")
        first = manager.get_result("one", timeout=WAIT)
        assert first is not None and first.generated_tokens == greedy_tokens([1, 2], 9)


def check_failing_step() -> None:
    with fake_manager(replace(FAKE, poison=99)) as manager:
        names = [manager.add_request(prompt, max_new_tokens=4) for prompt in ([1], [99], [2])]
        outputs = [manager.get_result(name, timeout=WAIT) for name in names]
        assert [output is not None and output.status.name for output in outputs] == ["FINISHED", "FAILED", "FINISHED"]


def check_zero_temperature() -> None:
    with fake_manager(temperature=0.8) as manager:
        assert result(manager, [1], temperature=0, max_new_tokens=5).generated_tokens == greedy_tokens([1], 5)


def check_top_k() -> None:
    with llama_manager() as manager:
        all_tokens, many = (
            result(manager, [5], temperature=1, top_k=top_k, seed=1, max_new_tokens=9) for top_k in (0, 10**6)
        )
        assert all_tokens.generated_tokens == many.generated_tokens


def check_impossible_values() -> None:
    fails_alone("top_p must be between 0 and 1, got -3", [1], top_p=-3)()
    fails_alone("temperature must be between 0 and 2, got 9", [1], temperature=9)()


def check_own_parameters() -> None:
    greedy = generated(float32_model("llama"), [5], 6)
    with llama_manager(temperature=1.0) as manager:
        for own in ({"top_k": 1}, {"temperature": 1, "min_p": 1}, {"top_p": 0.0}, {"temperature": 0}):
            assert result(manager, [5], max_new_tokens=6, **own).generated_tokens == greedy
        assert result(manager, [5], max_new_tokens=6, seed=1).generated_tokens != greedy


def check_penalty_and_minimum() -> None:
    model, prompt = float32_model("llama"), [5, 6, 7]
    options = {"max_new_tokens": 12, "do_sample": False, "repetition_penalty": 1.5, "min_new_tokens": 9}
    with torch.inference_mode():
        plain = generated(model, prompt, 12)
        expected = model.generate(torch.tensor([prompt]), eos_token_id=plain[2], **options)[0, 3:].tolist()
    (output,) = attach(model).generate_batch([prompt], GenerationConfig(eos_token_id=plain[2], **options)).values()
    assert output.generated_tokens == expected != plain


def check_history() -> None:
    model, prompt = float32_model("llama"), [5, 6, 5]
    plain = generated(model, prompt, 12)
    options = {"max_new_tokens": 12, "no_repeat_ngram_size": 2, "bad_words_ids": [plain[:2], [plain[3]]]}
    with torch.inference_mode():
        expected = model.generate(torch.tensor([prompt]), do_sample=False, **options)[0, 3:].tolist()
    with llama_manager() as manager:
        assert result(manager, prompt, **options).generated_tokens == expected != plain


def check_sampling_switch() -> None:
    config = GenerationConfig(temperature=0.8)
    assert resolve_settings(config).is_greedy and not resolve_settings(config, None, {"temperature": 0.8}).is_greedy
    with fake_manager() as manager:
        assert result(manager, [1], max_new_tokens=9).generated_tokens == greedy_tokens([1], 9)
        sampled = {tuple(result(manager, [1], temperature=1, max_new_tokens=9).generated_tokens) for _ in range(4)}
        assert len(sampled) == 4


def check_seed() -> None:
    with fake_manager() as manager:
        alone = result(manager, [1], temperature=1, seed=3, max_new_tokens=9)
        names = [manager.add_request([1], temperature=1, seed=seed, max_new_tokens=9) for seed in (1, 2, 3, 4)]
        outputs = [manager.get_result(name, timeout=WAIT) for name in names]
        assert [output == alone or (output and output.generated_tokens == alone.generated_tokens)
                for output in outputs] == [False, False, True, False]  # fmt: skip
    state = torch.get_rng_state()
    with fake_manager(temperature=1.0, seed=5) as first, fake_manager(temperature=1.0, seed=5) as second:
        assert result(first, [1]).generated_tokens == result(second, [1]).generated_tokens
    assert torch.equal(state, torch.get_rng_state())


def check_sequences() -> None:
    with fake_manager(num_return_sequences=3, max_new_tokens=2) as manager:
        name = manager.add_request([1])
        outputs = [manager.get_result(each, timeout=WAIT) for each in (name, f"{name}__child#0", f"{name}__child#1")]
        assert [output and output.generated_tokens for output in outputs] == 3 * [greedy_tokens([1], 2)]


def check_model_eos() -> None:
    end = greedy_tokens([1], 9)[4]
    with fake_manager(eos=(end,), max_new_tokens=9) as manager:
        output = result(manager, [1])
        assert output.finish_reason == "stop" and output.generated_tokens == greedy_tokens([1], 9, eos=(end,))
        assert output.generated_tokens[-1] == end
        assert len(result(manager, [1], eos_token_id=-1).generated_tokens) == 9
    assert resolve_settings(GenerationConfig()).eos_token_ids is None


def check_max_length() -> None:
    with fake_manager(max_length=8) as manager:
        assert len(result(manager, [1, 2, 3]).generated_tokens) == 5
        assert len(result(manager, [1, 2, 3], max_new_tokens=9).generated_tokens) == 9


def check_num_blocks() -> None:
    assert resolve_settings(None, ContinuousBatchingConfig(num_blocks=2)).options["num_blocks"] == 2 * 256 // 16
    assert resolve_settings(GenerationConfig(num_blocks=2)).options["num_blocks"] == 2 * 32 // 16


def check_defaults() -> None:
    assert set(resolve_settings(GenerationConfig(), ContinuousBatchingConfig()).options) == {"max_queue_size"}


def check_scheduler() -> None:
    with pytest.raises(ConfigError, match="scheduler_type must be 'fifo' or 'prefill_first', got 'other'"):
        attach(float32_model("llama")).generate_batch([[1]], None, ContinuousBatchingConfig(scheduler_type="other"))


def check_unknown_option() -> None:
    with pytest.raises(TypeError, match="unknown option 'max_new_token'; did you mean 'max_new_tokens'") as caught:
        attach(float32_model("llama")).generate_batch([[1]], max_new_token=1)
    assert type(caught.value) is UnknownOption


def check_shared_prefix() -> None:
    prompt = list(range(5, 45))
    with llama_manager() as manager:
        first, second = (result(manager, prompt, max_new_tokens=1) for _ in range(2))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)


def check_logprobs() -> None:
    model, prompt = attach(float32_model("llama")), [5, 6, 7]
    (output,) = model.generate_batch(
        [prompt], None, ContinuousBatchingConfig(return_logprobs=True), max_new_tokens=5, temperature=0.3, seed=1
    ).values()
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output.generated_tokens])).logits[0, 2:-1].float()
    expected = logits.log_softmax(-1).gather(1, torch.tensor(output.generated_tokens)[:, None])[:, 0]
    assert output.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def check_cancel() -> None:
    with fake_manager(SLOW) as manager:
        name = manager.add_request([1], streaming=True)
        first = manager.get_result(name, timeout=WAIT)
        manager.cancel_request(name)
        *_, last = manager.request_id_iter(name)
        assert first is not None and last.status is RequestStatus.CANCELLED and last.status == 5
        assert last.generated_tokens[: len(first.generated_tokens)] == first.generated_tokens


def check_timeout() -> None:
    with fake_manager(SLOW) as manager:
        output = result(manager, [1], timeout=0.2)
        assert output.status is RequestStatus.FAILED and "0.2" in (output.error or "")
        assert output.generated_tokens == greedy_tokens([1], len(output.generated_tokens))


def check_stopping() -> None:
    with fake_manager(SLOW) as manager:
        manager.add_request([1], max_new_tokens=20)
        manager.stop(block=False)
        with pytest.raises(EngineDead, match="accepts no requests"):
            manager.add_request([2])
        manager.join(timeout=WAIT)


def check_full_queue() -> None:
    assert manager_module.FULL_QUEUE_SECONDS == 10
    with pytest.MonkeyPatch.context() as patch, fake_manager(max_queue_size=1, start=False) as manager:
        patch.setattr(manager_module, "FULL_QUEUE_SECONDS", 0.0)
        manager.add_request([1])
        with pytest.raises(queue.Full):
            manager.add_request([2])


def check_get_result() -> None:
    with fake_manager(SLOW) as manager:
        short, long = (manager.add_request([1], max_new_tokens=count) for count in (2, 20))
        outputs = [manager.get_result(name, timeout=WAIT) for name in (long, short)]
        assert [output and len(output.generated_tokens) for output in outputs] == [20, 2]


def check_iteration() -> None:
    with fake_manager(max_new_tokens=2) as manager:
        names = manager.add_requests([[1], [2], [3]])
        manager.stop()
        assert {output.request_id for output in manager} == set(names)


def check_handler() -> None:
    async def scenario(manager: ContinuousBatchingManager) -> list[int]:
        name, ended, lengths = manager.add_request([1], max_new_tokens=3, streaming=True), asyncio.Event(), []
        while manager.open_requests:
            await asyncio.sleep(0.001)

        def receive(output: GenerationOutput) -> None:
            lengths.append(len(output.generated_tokens))
            if output.is_finished():
                ended.set()

        manager.register_result_handler(name, receive)
        await asyncio.wait_for(ended.wait(), WAIT)
        return lengths

    with fake_manager() as manager:
        assert asyncio.run(scenario(manager))[-1] == 3
        assert manager.output_queue.empty()


def check_finish_reason() -> None:
    (row,) = [row for row in table(PAGE, "What differs") if row[0] == "`output.finish_reason`"]
    end = greedy_tokens([1], 9)[4]
    with fake_manager(max_new_tokens=50) as manager:
        cancelled = manager.add_request([7], max_new_tokens=200)
        manager.cancel_request(cancelled)
        outputs = [
            result(manager, [1], eos_token_id=end), result(manager, [1]), manager.get_result(cancelled, timeout=WAIT),
            result(manager, [500]),
        ]  # fmt: skip
        assert [output and output.finish_reason for output in outputs] == re.findall(r'"(\w+)"', row[2])


def check_no_stop() -> None:
    script = (
        "from chairlift.llm.transformers_compat.manager import ContinuousBatchingManager\n"
        "manager = ContinuousBatchingManager('chairlift:random', num_blocks=40, max_model_len=64, dtype='float32')\n"
        "manager.start()\nmanager.add_request([5, 6], max_new_tokens=4)\nprint(manager.get_result().status.name)\n"
        "manager.add_request([5, 6], max_new_tokens=40)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "FINISHED\n"), done.stderr


def check_no_references() -> None:
    manager = make_fake_manager()
    manager.start()
    name, outputs, client = manager.add_request([1], max_new_tokens=9), manager.output_queue, manager.client
    del manager
    output = outputs.read(name, 60, lambda: True)
    assert client is not None and output is not None and output.status is RequestStatus.FINISHED
    client.thread.join(20)
    assert not client.thread.is_alive()


def check_attention() -> None:
    model = attach(float32_model("llama"))
    before = (type(model), model.config._attn_implementation)
    with model.continuous_batching_context_manager() as manager:
        assert (type(model), model.config._attn_implementation) == before
        assert next(iter(model.parameters())).dtype is torch.float32
        result(manager, [5], max_new_tokens=1)
        with torch.inference_mode():
            assert model(torch.tensor([[5]])).logits.isfinite().all()


def check_hints() -> None:
    manager = attach(float32_model("llama")).init_continuous_batching(workload_hints=object())
    assert manager.settings == attach(float32_model("llama")).init_continuous_batching().settings


def check_one_device() -> None:
    before = threading.enumerate()
    with fake_manager() as manager:
        result(manager, [1], max_new_tokens=2)
        names = [thread.name for thread in threading.enumerate() if thread not in before]
    assert sum("chairlift-engine" in name for name in names) == 1, names


TOO_LONG = "prompt has 300 tokens, the limit is 256"
CHECKS: dict[str, Callable[[], None]] = {
    "a prompt that the KV cache cannot hold": fails_alone(TOO_LONG, [1] * 300),
    "neither `max_new_tokens` nor an end of sequence": check_unlimited,
    "prompt + `max_new_tokens` over the context": fails_alone(
        "prompt has 3 tokens and max_new_tokens is 254, the limit of their sum is 256", [1, 2, 3], max_new_tokens=254
    ),
    "a token id outside the vocabulary": fails_alone("token id 128 is outside the vocabulary", [128]),
    "two open requests with one id": check_duplicates,
    "a forward pass that fails": check_failing_step,
    "`temperature=0`": check_zero_temperature,
    "`top_k` larger than the vocabulary": check_top_k,
    "`top_p=-3`, `temperature=9`": check_impossible_values,
    "`temperature`, `top_k`, `top_p` of a request": check_own_parameters,
    "`repetition_penalty`, `min_new_tokens`": check_penalty_and_minimum,
    "`no_repeat_ngram_size`, `bad_words_ids`": check_history,
    "`temperature` without `do_sample`": check_sampling_switch,
    "`seed`": check_seed,
    "`num_return_sequences`": check_sequences,
    "`GenerationConfig` without `eos_token_id`": check_model_eos,
    "`max_length`": check_max_length,
    "`num_blocks` without a page size": check_num_blocks,
    "a default of `ContinuousBatchingConfig`": check_defaults,
    '`scheduler_type="other"`': check_scheduler,
    "`generate_batch(..., unknown=1)`": check_unknown_option,
    "equal beginnings of prompts": check_shared_prefix,
    "`return_logprobs`": check_logprobs,
    "`cancel_request()`": check_cancel,
    "`add_request(..., timeout=seconds)`": check_timeout,
    "`add_request()` to a manager that stops": check_stopping,
    "`add_request()` with a full queue": check_full_queue,
    "`get_result(request_id)`": check_get_result,
    "`for output in manager`": check_iteration,
    "`register_result_handler()`": check_handler,
    "`output.finish_reason`": check_finish_reason,
    "`manager.stop()` forgotten": check_no_stop,
    "a manager without references": check_no_references,
    "`attn_implementation` of the model": check_attention,
    "`workload_hints`": check_hints,
    "several devices": check_one_device,
}


def test_every_difference_has_a_check_and_every_check_a_row() -> None:
    rows = table(PAGE, "What differs")
    assert all(len(row) == 3 for row in rows)
    assert [row[0] for row in rows] == list(CHECKS)


@pytest.mark.share(10)
@pytest.mark.parametrize("row", CHECKS)
def test_what_the_row_says_holds(row: str) -> None:
    CHECKS[row]()
