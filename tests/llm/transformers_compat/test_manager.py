"""ContinuousBatchingManager over a fake engine: its life, requests, results, handlers and pauses."""

import asyncio
import queue
import random
import threading
import time
from typing import Any

import pytest
import torch

from chairlift.core.errors import DuplicateRequestId, EngineDead
from chairlift.llm.transformers_compat import manager as manager_module
from chairlift.llm.transformers_compat.generation_output import GenerationOutput
from chairlift.llm.transformers_compat.manager import ContinuousBatchingManager
from chairlift.llm.transformers_compat.request_status import RequestStatus
from support_transformers_compat import FAKE, SLOW, fake_manager, greedy_tokens, random_prompts

PROMPT = [5, 6, 7]


def result(manager: ContinuousBatchingManager, name: str) -> GenerationOutput:
    output = manager.get_result(name, timeout=20)
    assert output is not None, f"{name} has no output"
    return output


# -- requests and results ----------------------------------------------------------------------------------------------


def test_tokens_are_those_of_each_prompt_alone() -> None:
    prompts = random_prompts(20)
    with fake_manager() as manager:
        names = manager.add_requests(prompts, max_new_tokens=9)
        assert len(set(names)) == 20
        for prompt, name in reversed(list(zip(prompts, names, strict=True))):  # the order of reading does not matter
            output = result(manager, name)
            assert output.generated_tokens == greedy_tokens(prompt, 9) and output.prompt_ids == prompt
            assert output.status is RequestStatus.FINISHED and output.error is None and output.is_finished()
            assert output.finish_reason == "length"
            assert output.created_time <= output.lifespan[0] <= output.lifespan[1]
        assert not manager.open_requests and manager.output_queue.empty()


def test_requests_added_before_the_start_run_at_the_start() -> None:
    with fake_manager(start=False) as manager:
        name = manager.add_request(PROMPT, max_new_tokens=3)
        assert manager.input_queue.qsize() == 1 and not manager.is_running()
        assert manager.get_result(timeout=0.01) is None
        with pytest.raises(DuplicateRequestId):
            manager.add_request(PROMPT, name)
        manager.start()
        assert result(manager, name).generated_tokens == greedy_tokens(PROMPT, 3) and manager.input_queue.empty()


def test_streaming_has_one_output_for_each_token_and_others_have_one() -> None:
    with fake_manager() as manager:
        manager.add_request(PROMPT, "plain", max_new_tokens=4)
        manager.add_request(PROMPT, "stream", max_new_tokens=4, streaming=True, record_timestamps=True)
        outputs = list(manager.request_id_iter("stream"))
        expected = greedy_tokens(PROMPT, 4)
        assert [output.generated_tokens for output in outputs] == [expected[: 1 + index] for index in range(4)]
        assert [output.is_finished() for output in outputs] == [False, False, False, True]
        times = outputs[-1].timestamps
        assert times is not None and len(times) == 4 and times == sorted(times) and outputs[0].timestamps == times[:1]
        assert result(manager, "plain").timestamps is None
        assert list(manager.request_id_iter("plain")) == []


def test_limits_and_ends_of_sequence_may_be_each_request_s_own() -> None:
    tokens = greedy_tokens(PROMPT, 20)
    with fake_manager(max_new_tokens=6, eos=(tokens[4],)) as manager:
        manager.add_request(PROMPT, "model's eos")
        manager.add_request(PROMPT, "own eos", eos_token_id=[tokens[2]])
        manager.add_request(PROMPT, "no eos", eos_token_id=-1)
        manager.add_request(PROMPT, "own limit", max_new_tokens=2)
        found = {name: result(manager, name) for name in ("model's eos", "own eos", "no eos", "own limit")}
    assert {name: output.generated_tokens for name, output in found.items()} == {
        "model's eos": greedy_tokens(PROMPT, 6, eos=(tokens[4],)),
        "own eos": greedy_tokens(PROMPT, 6, eos=(tokens[2],)),
        "no eos": tokens[:6],
        "own limit": tokens[:2],
    }
    assert found["own eos"].finish_reason == "stop" and found["own eos"].generated_tokens[-1] == tokens[2]


def test_every_request_has_its_own_sampling_and_a_seed_repeats_it() -> None:
    sampled = {"temperature": 1.0, "top_k": 50, "top_p": 0.9}
    with fake_manager(max_new_tokens=8) as manager:
        for name, options in {
            "greedy": {"temperature": 0.0}, "default": {}, "one": sampled | {"seed": 1}, "same": sampled | {"seed": 1},
            "two": sampled | {"seed": 2}, "int": sampled | {"temperature": 1, "seed": 1},
            "switch": {"do_sample": True, "seed": 1, "top_k": 50, "top_p": 0.9},
        }.items():  # fmt: skip
            manager.add_request(PROMPT, name, **options)
        tokens = {name: result(manager, name).generated_tokens for name in
                  ("greedy", "default", "one", "same", "two", "int", "switch")}  # fmt: skip
    assert tokens["greedy"] == tokens["default"] == greedy_tokens(PROMPT, 8)
    assert tokens["one"] == tokens["same"] == tokens["int"] == tokens["switch"]
    assert len({tuple(tokens[name]) for name in ("greedy", "one", "two")}) == 3


def test_a_seed_of_the_manager_repeats_all_its_requests() -> None:
    def run(seed: int) -> list[list[int]]:
        with fake_manager(max_new_tokens=8, do_sample=True, seed=seed) as manager:
            return [result(manager, name).generated_tokens for name in manager.add_requests([PROMPT] * 3)]

    assert run(1) == run(1) != run(2)
    assert len({tuple(tokens) for tokens in run(1)}) == 3


def test_further_sequences_are_children_of_their_request() -> None:
    with fake_manager(num_return_sequences=3, max_new_tokens=4, do_sample=True) as manager:
        manager.add_request(PROMPT, "r", seed=None)
        outputs = [result(manager, name) for name in ("r", "r__child#0", "r__child#1")]
        assert len({tuple(output.generated_tokens) for output in outputs}) == 3


def test_logprobs_come_with_the_tokens_where_requested() -> None:
    with fake_manager(return_logprobs=True, max_new_tokens=3) as manager:
        manager.add_request(PROMPT, "r", streaming=True)
        assert [len(output.logprobs) for output in manager.request_id_iter("r")] == [1, 2, 3]
    with fake_manager(max_new_tokens=3) as manager:
        manager.add_request(PROMPT, "r")
        assert result(manager, "r").logprobs == []


def test_prompts_may_be_tensors_and_a_cached_prefix_is_counted() -> None:
    prompt = list(range(3, 23))
    with fake_manager(max_new_tokens=2) as manager:
        for name, ids in (("first", prompt), ("second", torch.tensor([prompt]))):
            manager.add_request(ids, name)
            assert result(manager, name).generated_tokens == greedy_tokens(prompt, 2)
        manager.add_request(prompt, "third")
        assert result(manager, "third").num_cached_tokens == 16


def test_iteration_yields_every_output_until_the_manager_stops() -> None:
    with fake_manager(max_new_tokens=2) as manager:
        manager.add_requests([PROMPT] * 5)
        threading.Timer(0.05, manager.stop).start()
        assert len(list(manager)) == 5
        assert not manager.is_running()


def test_a_result_that_cannot_come_is_not_waited_for() -> None:
    with fake_manager(SLOW, max_new_tokens=2) as manager:
        assert manager.get_result("unknown") is None
        began = time.monotonic()
        assert manager.get_result(timeout=0.05) is None and time.monotonic() - began >= 0.05
        manager.add_request(PROMPT, "r")
        assert manager.get_result("r") is not None and manager.get_result("r") is None
        manager.stop()
        assert manager.get_result() is None


def test_a_full_queue_makes_producers_wait_and_then_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_module, "FULL_QUEUE_SECONDS", 0.05)
    with fake_manager(start=False, max_queue_size=2, max_new_tokens=2) as manager:
        names = manager.add_requests([PROMPT] * 2)
        with pytest.raises(queue.Full, match="2 requests wait, the limit max_queue_size is 2"):
            manager.add_request(PROMPT)
        monkeypatch.setattr(manager_module, "FULL_QUEUE_SECONDS", 20.0)
        threading.Timer(0.05, manager.start).start()
        names.append(manager.add_request(PROMPT))
        assert [result(manager, name).generated_tokens for name in names] == [greedy_tokens(PROMPT, 2)] * 3


# -- handlers ----------------------------------------------------------------------------------------------------------


def test_handlers_get_each_output_whenever_they_are_registered() -> None:
    async def scenario(manager: ContinuousBatchingManager) -> None:
        seen: dict[str, list[GenerationOutput]] = {"early": [], "late": [], "plain": []}
        ended = asyncio.Event()

        def handler(name: str) -> Any:
            def handle(output: GenerationOutput) -> None:
                seen[name].append(output)
                if sum(each[-1].is_finished() for each in seen.values() if each) == 3:
                    ended.set()

            return handle

        manager.register_result_handler("early", handler("early"))
        manager.add_request(PROMPT, "early", max_new_tokens=3, streaming=True)
        manager.add_request(PROMPT, "late", max_new_tokens=3, streaming=True)
        manager.add_request(PROMPT, "plain", max_new_tokens=3)
        await asyncio.sleep(0.05)
        manager.register_result_handler("late", handler("late"))
        manager.register_result_handler("plain", handler("plain"))
        await asyncio.wait_for(ended.wait(), 20)
        lengths = {name: [len(output.generated_tokens) for output in outputs] for name, outputs in seen.items()}
        assert lengths == {"early": [1, 2, 3], "late": [1, 2, 3], "plain": [3]}
        assert manager.output_queue.empty() and manager.output_queue.num_handlers == 0

    with fake_manager() as manager:
        asyncio.run(scenario(manager))
        with pytest.raises(RuntimeError):
            manager.register_result_handler("r", print)


# -- the end -----------------------------------------------------------------------------------------------------------


def test_stop_finishes_what_is_open_and_accepts_nothing_more() -> None:
    with fake_manager(SLOW, max_new_tokens=10) as manager:
        names = manager.add_requests([PROMPT] * 3)
        manager.stop(block=False)
        assert manager.stop_event.is_set()
        with pytest.raises(EngineDead, match="was stopped"):
            manager.add_request(PROMPT)
        assert [result(manager, name).status for name in names] == [RequestStatus.FINISHED] * 3
        manager.join(timeout=20)
        assert not manager.is_running() and manager.client is None


def test_a_hard_stop_fails_what_is_open() -> None:
    with fake_manager(SLOW, max_new_tokens=200) as manager:
        names = manager.add_requests([PROMPT] * 3)
        manager.stop(hard_stop=True, timeout=20)
        outputs = [result(manager, name) for name in names]
        assert {output.status for output in outputs} == {RequestStatus.FAILED}
        assert {output.error for output in outputs} == {"the manager was stopped"} and not manager.is_running()


def test_stop_within_its_timeout_goes_on_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    with fake_manager(SLOW, max_new_tokens=30) as manager:
        manager.add_request(PROMPT, "r")
        manager.stop(timeout=0.01)
        assert "did not exit after join timeout" in caplog.text
        assert result(manager, "r").status is RequestStatus.FINISHED
        manager.join()
        assert not manager.is_running()


def test_a_stopped_manager_starts_again_with_or_without_its_cache() -> None:
    prompt = list(range(3, 23))
    with fake_manager(max_new_tokens=2) as manager:
        cached = []
        for keep in (False, True, True):
            manager.add_request(prompt, "r")
            cached.append(result(manager, "r").num_cached_tokens)
            manager.stop(keep_for_next_session=keep)
            assert not manager.is_running()
            manager.start()
        manager.add_request(prompt, "r")
        assert [*cached, result(manager, "r").num_cached_tokens] == [0, 0, 16, 16]


def test_what_is_called_twice_or_too_early_only_warns(caplog: pytest.LogCaptureFixture) -> None:
    with fake_manager(start=False) as manager:
        manager.stop()
        manager.join()
        manager.start()
        manager.start()
        assert "Manager not started" in caplog.text and "already running" in caplog.text
        manager.destroy()
        manager.destroy()


def test_warmup_starts_the_engine_and_nothing_else() -> None:
    with fake_manager(start=False) as manager:
        manager.warmup()
        assert manager.warmed_up and manager.client is not None and not manager.is_running()


# -- pauses ------------------------------------------------------------------------------------------------------------


def test_no_step_runs_during_a_pause_and_every_request_finishes() -> None:
    steps: list[int] = []
    with fake_manager(SLOW, hook=lambda plan, stage: steps.append(plan.step_id), max_new_tokens=30) as manager:
        names = manager.add_requests([PROMPT] * 3)
        with manager.pause():
            count = len(steps)
            late = manager.add_request(PROMPT)
            time.sleep(0.05)
            assert len(steps) == count
        assert [result(manager, name).generated_tokens for name in (*names, late)] == [greedy_tokens(PROMPT, 30)] * 4


def test_a_stop_inside_a_pause_is_refused_and_from_another_thread_ends_an_idle_engine() -> None:
    with fake_manager(max_new_tokens=2) as manager:
        with manager.pause():
            with pytest.raises(RuntimeError, match="from inside a pause"):
                manager.stop()
            other = threading.Thread(target=manager.stop)
            other.start()
            other.join(20)
            assert not other.is_alive()
        assert not manager.is_running()
        with pytest.raises(RuntimeError, match=r"call start\(\) first"), manager.pause():
            pass


def test_requests_after_a_pause_share_no_cache_with_those_before() -> None:
    prompt = list(range(3, 23))
    with fake_manager(max_new_tokens=2) as manager:
        manager.add_request(prompt, "before")
        result(manager, "before")
        with manager.pause():
            pass
        for name, cached in (("after", 0), ("later", 16)):
            manager.add_request(prompt, name)
            assert result(manager, name).num_cached_tokens == cached


# -- many threads ------------------------------------------------------------------------------------------------------


def test_producers_cancellers_and_readers_of_many_threads_lose_nothing() -> None:
    with fake_manager(max_new_tokens=6) as manager:
        ended: list[GenerationOutput] = []

        def produce(number: int) -> None:
            rng = random.Random(number)
            for index in range(40):
                name = manager.add_request([rng.randrange(3, 120) for _ in range(5)], f"{number}-{index}")
                if rng.random() < 0.3:
                    manager.cancel_request(name)
                output = manager.get_result(name, timeout=20)
                assert output is not None
                ended.append(output)

        threads = [threading.Thread(target=produce, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len({output.request_id for output in ended}) == 240
        assert {output.status for output in ended} <= {RequestStatus.FINISHED, RequestStatus.CANCELLED}
        for output in ended:
            assert output.generated_tokens == greedy_tokens(output.prompt_ids, 6)[: len(output.generated_tokens)]
        assert not manager.open_requests and manager.output_queue.empty()


def test_a_stop_during_load_gives_every_accepted_request_one_end() -> None:
    with fake_manager(SLOW, max_new_tokens=5) as manager:
        accepted: list[str] = []

        def produce() -> None:
            try:
                for _ in range(200):
                    accepted.append(manager.add_request(PROMPT))
            except EngineDead:
                pass

        threads = [threading.Thread(target=produce) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        manager.stop(hard_stop=True, timeout=20)
        for thread in threads:
            thread.join(20)
        ends = [manager.get_result(name, timeout=1) for name in accepted]
        assert all(output is not None and output.is_finished() for output in ends)
        assert manager.output_queue.empty() and not manager.open_requests


assert FAKE.max_model_len == SLOW.max_model_len
