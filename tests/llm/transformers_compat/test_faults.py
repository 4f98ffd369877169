"""What ends transformers' manager ends one request here: its error says why, neighbours finish, the manager goes on.

D1 to D9 are inputs of one request after which transformers' manager serves no request any more, or lies.
"""

import logging
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import DuplicateRequestId, EngineDead
from chairlift.engine.step_plan import StepPlan
from chairlift.llm.transformers_compat.manager import ContinuousBatchingManager
from chairlift.llm.transformers_compat.request_status import RequestStatus
from support_transformers_compat import FAKE, SLOW, fake_manager, greedy_tokens

PROMPT = [5, 6, 7]
SMALL = replace(FAKE, num_blocks=8)  # 32 tokens
TESTS = Path(__file__).parents[2]


def run_beside_neighbours(manager: ContinuousBatchingManager, *bad: tuple[Any, dict[str, Any]]) -> list[Any]:
    """Add bad requests between good ones; return the bad ones' outputs after the good ones have their tokens."""
    names = []
    for number, (prompt, options) in enumerate(bad):
        manager.add_request(PROMPT, f"good {number}", max_new_tokens=8)
        names.append(manager.add_request(prompt, f"bad {number}", **{"max_new_tokens": 8} | options))
    outputs = [manager.get_result(name, timeout=20) for name in names]
    manager.add_request(PROMPT, "later", max_new_tokens=8)
    for name in (*(f"good {number}" for number in range(len(bad))), "later"):
        good = manager.get_result(name, timeout=20)
        assert good is not None and good.generated_tokens == greedy_tokens(PROMPT, 8), name
    assert manager.is_running()
    return outputs


def test_d1_a_prompt_or_an_output_larger_than_the_cache() -> None:
    with fake_manager(SMALL) as manager:
        prompt, output = run_beside_neighbours(manager, ([3] * 40, {}), ([3] * 20, {"max_new_tokens": 20}))
    assert prompt.status is output.status is RequestStatus.FAILED
    assert "blocks" in prompt.error and "blocks" in output.error and "8" in prompt.error


def test_d2_no_limit_and_no_end_of_sequence() -> None:
    with fake_manager(SMALL) as manager:
        endless = [(PROMPT, {"max_new_tokens": None})] * 3
        outputs = run_beside_neighbours(manager, *endless)
    assert [output.status for output in outputs] == [RequestStatus.FINISHED] * 3
    for output in outputs:  # as long as the cache has room, whatever else runs
        assert output.generated_tokens == greedy_tokens(PROMPT, 30) and output.finish_reason == "length"


def test_d3_two_requests_with_one_id() -> None:
    for start in (True, False):
        with fake_manager(SLOW, start=start) as manager:
            manager.add_request(PROMPT, "same", max_new_tokens=8)
            with pytest.raises(DuplicateRequestId, match="same"):
                manager.add_request([9], "same", max_new_tokens=8)
            if not start:
                manager.start()
            output = manager.get_result("same", timeout=20)
            assert output is not None and output.generated_tokens == greedy_tokens(PROMPT, 8)
            manager.add_request([9], "same", max_new_tokens=2)  # free again after its end
            again = manager.get_result("same", timeout=20)
            assert again is not None and again.generated_tokens == greedy_tokens([9], 2)


def test_d4_a_token_outside_the_vocabulary() -> None:
    with fake_manager() as manager:
        outputs = run_beside_neighbours(manager, ([3, FAKE.vocab_size], {}), ([-1], {}), ([], {}))
    assert [output.status for output in outputs] == [RequestStatus.FAILED] * 3
    assert str(FAKE.vocab_size) in outputs[0].error and "0 tokens" in outputs[2].error


def test_d5_a_temperature_of_zero_is_greedy() -> None:
    with fake_manager(do_sample=True, temperature=0.7) as manager:
        manager.add_request(PROMPT, "r", max_new_tokens=8, temperature=0.0)
        output = manager.get_result("r", timeout=20)
    assert output is not None and output.generated_tokens == greedy_tokens(PROMPT, 8)


def test_d6_a_top_k_above_the_vocabulary_keeps_all_tokens() -> None:
    with fake_manager() as manager:
        (output,) = run_beside_neighbours(manager, (PROMPT, {"top_k": 10**6, "temperature": 1.0, "seed": 1}))
    assert output.status is RequestStatus.FINISHED and len(output.generated_tokens) == 8


def test_d7_a_cancelled_request_has_an_end() -> None:
    with fake_manager(SLOW) as manager:
        for name in ("running", "stream"):
            manager.add_request(PROMPT, name, max_new_tokens=200, streaming=name == "stream")
        time.sleep(0.05)
        for name in ("running", "stream", "unknown"):
            manager.cancel_request(name)
        output = manager.get_result("running", timeout=20)
        assert output is not None and output.status is RequestStatus.CANCELLED and output.is_finished()
        assert output.error == "the request was cancelled" and output.finish_reason == "abort"
        *_, last = manager.request_id_iter("stream")
        assert last.status is RequestStatus.CANCELLED
        assert last.generated_tokens == greedy_tokens(PROMPT, 200)[: len(last.generated_tokens)]
    with fake_manager(start=False) as manager:
        manager.add_request(PROMPT, "waiting")
        manager.cancel_request("waiting")
        output = manager.get_result("waiting", timeout=0)
        assert output is not None and output.status is RequestStatus.CANCELLED and manager.input_queue.empty()


@pytest.mark.parametrize(
    "options",
    [
        {"top_p": -3}, {"top_p": 1.5}, {"temperature": -1}, {"temperature": float("nan")}, {"min_p": 2},
        {"top_k": -5}, {"repetition_penalty": 0}, {"max_new_tokens": 0}, {"max_new_tokens": "5"}, {"seed": 2**70},
        {"eos_token_id": ["a"]}, {"timeout": -1}, {"temprature": 1.0}, {"typical_p": 0}, {"priority": 1.5},
    ],
    ids=str,
)  # fmt: skip
def test_d8_parameters_out_of_range_are_named(options: dict[str, Any]) -> None:
    with fake_manager() as manager:
        (output,) = run_beside_neighbours(manager, (PROMPT, options))
    assert output.status is RequestStatus.FAILED and next(iter(options)) in output.error


def test_d8_a_top_k_of_zero_is_all_tokens() -> None:
    with fake_manager() as manager:
        options = [{"top_k": top_k, "temperature": 1.0, "seed": 3} for top_k in (0, -1, FAKE.vocab_size)]
        outputs = run_beside_neighbours(manager, *((PROMPT, each) for each in options))
    assert outputs[0].generated_tokens == outputs[1].generated_tokens == outputs[2].generated_tokens


def test_d9_more_tokens_than_the_model_has_positions() -> None:
    with fake_manager() as manager:
        long, output = run_beside_neighbours(manager, ([3] * 300, {}), ([3] * 250, {"max_new_tokens": 10}))
    assert long.status is output.status is RequestStatus.FAILED
    assert "300" in long.error and "256" in long.error and "256" in output.error


# -- rows of the manager -----------------------------------------------------------------------------------------------


def test_a_step_that_fails_ends_only_the_request_that_makes_it_fail() -> None:
    with fake_manager(replace(FAKE, poison=99, nan=98)) as manager:
        outputs = run_beside_neighbours(manager, ([3, 99], {}), ([3, 98], {}))
    assert [output.status for output in outputs] == [RequestStatus.FAILED] * 2
    assert "99" in outputs[0].error and "NaN" in outputs[1].error


def test_a_request_may_have_a_deadline() -> None:
    with fake_manager(SLOW) as manager:
        (output,) = run_beside_neighbours(manager, (PROMPT, {"timeout": 0.05, "max_new_tokens": 200}))
    assert output.status is RequestStatus.FAILED and "timeout" in output.error and output.finish_reason == "error"


def test_an_engine_that_dies_ends_its_requests_and_says_so() -> None:
    class Dead(BaseException):
        pass

    are_added = threading.Event()

    def die(plan: StepPlan, stage: str) -> None:
        if plan.step_id == 3:
            are_added.wait(20)
            raise Dead("a native library panics")

    with fake_manager(hook=die, max_new_tokens=20) as manager:
        names = manager.add_requests([PROMPT] * 2)
        are_added.set()
        outputs = [manager.get_result(name, timeout=20) for name in names]
        assert all(output is not None and output.status is RequestStatus.FAILED for output in outputs)
        assert all(output is not None and "engine failed" in (output.error or "") for output in outputs)
        assert not manager.is_running()
        with pytest.raises(EngineDead):
            manager.add_request(PROMPT)
        assert manager.get_result() is None
        manager.stop()


def test_a_thousand_cancelled_requests_leave_nothing_behind() -> None:
    with fake_manager(max_new_tokens=50) as manager:
        for number in range(1000):
            manager.add_request(PROMPT, f"r{number}", streaming=True)
            manager.cancel_request(f"r{number}")
        ends = dict.fromkeys(f"r{number}" for number in range(1000))
        for name in ends:
            *_, last = manager.request_id_iter(name)
            assert last.is_finished()
        assert manager.output_queue.empty() and not manager.output_queue._numbers and not manager.open_requests


@pytest.mark.full
def test_a_stream_of_many_tokens_copies_none_that_is_not_read() -> None:
    with fake_manager(replace(FAKE, max_model_len=4000, num_blocks=1000, verify=False)) as manager:
        manager.add_request(PROMPT, "r", max_new_tokens=3000, streaming=True)
        outputs = list(manager.request_id_iter("r"))
    assert len(outputs) == 3000
    assert len({id(output._tokens) for output in outputs}) == 1
    assert outputs[9].generated_tokens == outputs[-1].generated_tokens[:10]


@pytest.mark.full
def test_nothing_waits_for_a_manager_that_is_never_stopped() -> None:
    script = """
from support_transformers_compat import SLOW, make_fake_manager
manager = make_fake_manager(SLOW)
manager.start()
manager.add_request([5, 6, 7], "r", max_new_tokens=240)
print("end of the script", flush=True)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=TESTS, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0 and "end of the script" in ended.stdout, ended.stderr


def test_the_logger_has_transformers_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ContinuousBatchingLogger"), fake_manager(max_new_tokens=2) as manager:
        manager.start()
    assert {record.name for record in caplog.records} == {"ContinuousBatchingLogger"}


def test_threads_end_with_their_manager() -> None:
    before = threading.active_count()
    for _ in range(3):
        with fake_manager(max_new_tokens=2) as manager:
            manager.add_requests([PROMPT] * 3)
            manager.stop()
    assert threading.active_count() == before
