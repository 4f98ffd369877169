"""ContinuousBatchingManager: every order of start, stop, pause, cancel and destroy, and of calls during them."""

import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch

from chairlift.core.errors import DuplicateRequestId, EngineDead, UnknownOption
from chairlift.llm.transformers_compat.manager import ContinuousBatchingManager
from chairlift.llm.transformers_compat.request_status import RequestStatus
from support_shares import for_each
from support_transformers_compat import FAKE, SLOW, fake_manager, float32_model, greedy_tokens

PROMPT = [5, 6, 7]


def test_the_prompt_of_an_output_does_not_follow_the_callers_list() -> None:
    with fake_manager() as manager:
        prompt = list(PROMPT)
        manager.add_request(prompt, "a", 2)
        prompt.append(99)
        output = manager.get_result("a")
        assert output is not None and output.prompt_ids == PROMPT


def test_stop_finishes_open_requests_and_refuses_later_ones_until_the_next_start() -> None:
    with fake_manager(SLOW) as manager:
        manager.add_request(PROMPT, "a", 20)
        manager.stop()
        output = manager.get_result("a")
        assert output is not None and output.generated_tokens == greedy_tokens(PROMPT, 20)
        assert not manager.is_running() and manager.stop_event.is_set() and manager.client is None
        with pytest.raises(EngineDead, match="the manager was stopped and accepts no requests; call start"):
            manager.add_request(PROMPT, "b", 1)
        manager.stop()
        manager.join()
        manager.start()
        assert not manager.stop_event.is_set()
        manager.add_request(PROMPT, "a", 2)
        again = manager.get_result("a")
        assert again is not None and again.generated_tokens == greedy_tokens(PROMPT, 2)
        manager.start()


def test_a_hard_stop_fails_what_is_open_also_after_a_stop_that_waits() -> None:
    with fake_manager(SLOW) as manager:
        manager.add_request(PROMPT, "a", 200)
        manager.stop(block=False)
        with pytest.raises(EngineDead):
            manager.add_request(PROMPT, "b", 1)
        manager.stop(timeout=0)
        assert manager.is_running()
        manager.stop(hard_stop=True)
        output = manager.get_result("a")
        assert output is not None and output.status is RequestStatus.FAILED
        assert output.error == "the manager was stopped"
        assert not manager.is_running() and manager.get_result("a") is None


def test_an_engine_that_is_kept_has_its_cache_in_the_next_session() -> None:
    prompt = list(range(3, 40))
    with fake_manager() as manager:
        for cached in (0, 36):
            manager.add_request(prompt, "a", 4)
            output = manager.get_result("a")
            assert output is not None and output.num_cached_tokens == cached
            client = manager.client
            manager.add_request(prompt, "b", 150)
            manager.stop(keep_for_next_session=True, hard_stop=True)
            assert manager.client is client and not manager.is_running()
            manager.start()
            assert manager.get_result("b") is not None
        assert manager.client is client


def test_stop_and_cancel_while_the_engine_loads() -> None:
    loads, loaded = threading.Event(), threading.Event()
    with fake_manager(start=False) as manager:
        start_engine = manager._engine._source.start

        def slow_start() -> Any:
            loads.set()
            assert loaded.wait(20)
            return start_engine()

        object.__setattr__(manager._engine._source, "start", slow_start)
        starter = threading.Thread(target=manager.start)
        starter.start()
        assert loads.wait(20)
        manager.add_request(PROMPT, "early", 3)
        manager.add_request(PROMPT, "cancelled", 3)
        manager.cancel_request("cancelled")
        manager.stop(block=False)
        with pytest.raises(EngineDead):
            manager.add_request(PROMPT, "late", 3)
        loaded.set()
        starter.join(20)
        manager.join(timeout=20)
        outputs = {output.request_id: output.status for output in manager}
        assert outputs == {"early": RequestStatus.FINISHED, "cancelled": RequestStatus.CANCELLED}
        assert not manager.is_running()


def test_a_start_that_fails_keeps_the_requests_for_the_next_one() -> None:
    with fake_manager(start=False) as manager:
        start_engine = manager._engine._source.start
        object.__setattr__(manager._engine._source, "start", lambda: 1 / 0)
        manager.add_request(PROMPT, "a", 3)
        with pytest.raises(ZeroDivisionError):
            manager.start()
        manager.stop()
        assert not manager.is_running() and manager.input_queue.qsize() == 1
        object.__setattr__(manager._engine._source, "start", start_engine)
        manager.start()
        output = manager.get_result("a")
        assert output is not None and output.generated_tokens == greedy_tokens(PROMPT, 3)


def test_two_starts_at_once_start_one_engine() -> None:
    with fake_manager(start=False) as manager:
        engines, start_engine = [], manager._engine._source.start
        object.__setattr__(manager._engine._source, "start", lambda: engines.append(start_engine()) or engines[-1])
        threads = [threading.Thread(target=call) for call in (manager.start, manager.warmup, manager.start) * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(engines) == 1 and manager.warmed_up and manager.is_running()


def test_destroy_ends_everything_and_may_be_repeated() -> None:
    with fake_manager() as manager:
        client = manager.client
        manager.add_request(PROMPT, "a", 3)
        manager.destroy()
        manager.destroy()
        assert client is not None and client.fatal_error is not None and not manager.is_running()
        output = manager.get_result("a")
        assert output is not None and output.status is RequestStatus.FINISHED
    with fake_manager(start=False) as manager:
        manager.warmup()
        manager.destroy()
        assert manager.client is None


def test_sequences_of_a_prompt_have_ids_and_seeds_of_their_own() -> None:
    with fake_manager(num_return_sequences=3, do_sample=True) as manager:
        for options in ({}, {"seed": 5}):
            name = manager.add_request(PROMPT, None, 12, **options)
            names = [f"{name}__child#0", f"{name}__child#1", name]
            outputs = [manager.get_result(each, 20) for each in names]
            assert len({tuple(output.generated_tokens) for output in outputs if output is not None}) == 3
        manager.add_request(PROMPT, "a__child#1", 100)
        with pytest.raises(DuplicateRequestId):
            manager.add_request(PROMPT, "a", 100)
        assert list(manager.open_requests) == ["a__child#1__child#1", "a__child#1__child#0", "a__child#1"]
        manager.cancel_request("a__child#1")
        assert {output.status for output in (manager.get_result(timeout=20) for _ in range(3)) if output} == {
            RequestStatus.CANCELLED
        }


@for_each("ids", [None, 7, "abc", [1.5], [True], [[1], [2]], torch.tensor([1.0]), {"input_ids": [1]}])
def test_what_is_no_prompt_is_a_type_error_and_leaves_nothing(ids: Any) -> None:
    with fake_manager() as manager:
        with pytest.raises(TypeError, match="token ids"):
            manager.add_request(ids)
        with pytest.raises(TypeError, match="request_id must be a str, got int"):
            manager.add_request(PROMPT, 5)  # type: ignore[arg-type]
        for name in ("streaming", "record_timestamps"):
            with pytest.raises(TypeError, match=f"{name} must be true or false, got str"):
                manager.add_request(PROMPT, **{name: "no"})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="each a list of token ids, got int; a single prompt is"):
            manager.add_requests(PROMPT)  # type: ignore[arg-type]
        assert not manager.open_requests


@for_each(
    ("values", "error"),
    [
        ({"timeout": "x"}, "timeout must be"), ({"timeout": True}, "timeout must be"),
        ({"priority": "x"}, "priority must be an integer, got str"), ({"priority": 1.5}, "priority must be an integer"),
        ({"allowed_token_ids": []}, "allowed_token_ids must have at least one token id, got none"),
        ({"temperature": "hot"}, "temperature must be a number, got str"), ({"max_tokens": 3}, "'max_new_tokens'"),
    ],
)  # fmt: skip
def test_a_value_of_a_wrong_type_fails_its_request_alone_and_is_named(values: dict[str, Any], error: str) -> None:
    with fake_manager() as manager:
        bad, good = manager.add_request(PROMPT, **values), manager.add_request(PROMPT, max_new_tokens=2)
        failed, finished = (manager.get_result(name, 20) for name in (bad, good))
        assert failed is not None and failed.status is RequestStatus.FAILED and error in str(failed.error)
        assert finished is not None and finished.status is RequestStatus.FINISHED


def test_pause_parks_the_engine_for_every_holder_and_keeps_requests() -> None:
    steps: list[int] = []
    with fake_manager(SLOW, hook=lambda plan, stage: steps.append(plan.step_id)) as manager:
        manager.add_request(PROMPT, "a", 60, streaming=True)
        assert manager.get_result("a") is not None
        with ExitStack() as holders:
            for _ in range(3):
                holders.enter_context(manager.pause())
            num_steps = len(steps)
            manager.add_request(PROMPT, "b", 3)
            with pytest.raises(RuntimeError, match="from inside a pause"):
                manager.stop()
            assert manager.get_result("b", timeout=0.1) is None and len(steps) == num_steps
        assert [*manager.request_id_iter("a")][-1].generated_tokens == greedy_tokens(PROMPT, 60)
        output = manager.get_result("b")
        assert output is not None and output.generated_tokens == greedy_tokens(PROMPT, 3)
    with pytest.raises(RuntimeError, match="call start"), manager.pause():
        pass


def test_another_thread_may_stop_during_a_pause_and_the_stop_ends_after_it() -> None:
    with fake_manager(SLOW) as manager:
        manager.add_request(PROMPT, "a", 10)
        with manager.pause():
            stopper = threading.Thread(target=manager.stop)
            stopper.start()
            stopper.join(0.1)
            assert stopper.is_alive()
        stopper.join(20)
        output = manager.get_result("a")
        assert output is not None and output.generated_tokens == greedy_tokens(PROMPT, 10)


def test_requests_after_a_pause_share_no_block_with_those_before() -> None:
    prompt = list(range(3, 40))
    with fake_manager(SLOW) as manager:
        manager.add_request(prompt, "running", 100, streaming=True)
        assert manager.get_result("running") is not None
        with manager.pause():
            manager.add_request(prompt, "during", 3)
        manager.add_request(prompt, "after", 3)
        during, after = manager.get_result("during"), manager.get_result("after")
        assert during is not None and after is not None
        assert during.num_cached_tokens == 0 and during.generated_tokens == after.generated_tokens
        assert manager.client is not None and manager.client.check_integrity() == []
        manager.add_request(prompt, "later", 3)
        later = manager.get_result("later")
        assert later is not None and later.num_cached_tokens == 36


def test_the_constructor_takes_a_model_and_refuses_unknown_options() -> None:
    model = float32_model("llama")
    with pytest.raises(UnknownOption, match="did you mean 'max_new_tokens'"):
        ContinuousBatchingManager(model, max_new_token=3)
    manager = ContinuousBatchingManager(model, None, {"max_batch_tokens": 64}, max_new_tokens=3, num_blocks=32)
    assert manager.model is model and manager.settings.max_new_tokens == 3 and manager.client is None
    assert FAKE.vocab_size == 128 and not manager.is_running()


def test_readers_see_the_engine_and_may_drop_the_parameters_of_the_manager() -> None:
    with fake_manager(start=False, do_sample=True, top_k=3) as manager:
        assert manager.batch_processor is None and manager.current_batch == 0
        assert list(manager.logit_processor) == ["top_k"]
        manager.logit_processor.clear()
        assert not list(manager.logit_processor) and "top_k" not in manager.settings.sampling
        manager.start()
        processor = manager.batch_processor
        assert processor is not None and processor is manager.batch_processor
        name = manager.add_request(PROMPT, max_new_tokens=4)
        assert manager.get_result(name) is not None and manager.current_batch >= 4
        manager.stop()
        assert manager.last_batch_processor is processor and manager.current_batch >= 4


def test_a_result_is_waited_for_while_the_engine_starts_in_another_thread() -> None:
    with fake_manager(start=False) as manager:
        name = manager.add_request(PROMPT, max_new_tokens=3)
        real, is_loading = manager._engine._source.start, threading.Event()

        def slow_start() -> Any:
            is_loading.set()
            time.sleep(0.2)
            return real()

        manager._engine._source = replace(manager._engine._source, start=slow_start)
        thread = threading.Thread(target=manager.start)
        thread.start()
        assert is_loading.wait(20)
        output = manager.get_result(name, timeout=20)
        thread.join(20)
        assert output is not None and output.generated_tokens == greedy_tokens(PROMPT, 3)


def test_a_start_during_a_stop_waits_for_its_end() -> None:
    with fake_manager(SLOW, max_new_tokens=20) as manager:
        manager.add_request(PROMPT, "first")
        manager.stop(block=False, keep_for_next_session=True)
        manager.start()
        manager.add_request(PROMPT, "second")
        for name in ("first", "second"):
            output = manager.get_result(name, timeout=20)
            assert output is not None and output.generated_tokens == greedy_tokens(PROMPT, 20)


def test_requests_that_never_started_fail_when_the_manager_is_destroyed() -> None:
    with fake_manager(start=False) as manager:
        name = manager.add_request(PROMPT)
        manager.destroy()
        output = manager.get_result(name)
        assert output is not None and output.error == "the manager was stopped"
        with pytest.raises(EngineDead):
            manager.add_request(PROMPT)


def test_a_stop_after_a_warmup_ends_the_engine() -> None:
    with fake_manager(start=False) as manager:
        manager.warmup()
        client = manager.client
        assert client is not None and manager.warmed_up
        manager.stop()
        assert manager.client is None and not client.thread.is_alive() and not manager.warmed_up


def test_what_waits_for_the_engine_is_refused_inside_a_pause() -> None:
    with fake_manager(max_new_tokens=2) as manager:
        with manager.pause():
            name = manager.add_request(PROMPT)
            for call in (
                manager.warmup,
                manager.get_result,
                lambda: manager.get_result(name),
                lambda: next(iter(manager)),
            ):
                with pytest.raises(RuntimeError, match="from inside a pause of this thread"):
                    call()
            assert manager.get_result(name, timeout=0.01) is None
        assert manager.get_result(name) is not None


def test_several_requests_are_added_all_or_none() -> None:
    with fake_manager(SLOW, max_new_tokens=20) as manager:
        with pytest.raises(TypeError, match="token ids"):
            manager.add_requests([[5], [6], ["x"]])
        assert not manager.open_requests
        manager.add_request(PROMPT, "req_1")
        with pytest.raises(TypeError):
            manager.add_requests([[5], [6]], unknown_argument=object(), max_new_tokens=3, request_id="x")
        assert manager.get_result("req_1") is not None
