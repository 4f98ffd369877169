"""ContinuousBatchingManager in a fork: errors at once instead of waits, and the parent's requests finish."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from chairlift.core.errors import EngineDead
from chairlift.llm.transformers_compat.manager import KEPT, ContinuousBatchingManager
from support_os_fork import run_in_fork
from support_transformers_compat import SLOW, fake_manager, greedy_tokens

PROMPT = [5, 6, 7]

RAISING: dict[str, Callable[[ContinuousBatchingManager], Any]] = {
    "add_request": lambda manager: manager.add_request(PROMPT, "b", 2),
    "add_requests": lambda manager: manager.add_requests([PROMPT], 2),
    "get_result": lambda manager: manager.get_result("a"),
    "get_result of any": lambda manager: manager.get_result(timeout=1),
    "iteration": lambda manager: next(iter(manager)),
    "request_id_iter": lambda manager: next(manager.request_id_iter("a")),
    "start": lambda manager: manager.start(),
    "warmup": lambda manager: manager.warmup(),
    "pause": lambda manager: manager.pause().__enter__(),
    "open_requests": lambda manager: manager.open_requests,
}
QUIET: dict[str, Callable[[ContinuousBatchingManager], Any]] = {
    "cancel_request": lambda manager: manager.cancel_request("a"),
    "is_running": lambda manager: manager.is_running(),
    "stop": lambda manager: manager.stop(),
    "join": lambda manager: manager.join(),
    "destroy": lambda manager: manager.destroy(),
}


def results_in_fork(manager: ContinuousBatchingManager) -> Any:
    def calls() -> dict[str, Any]:
        results: dict[str, Any] = {}
        for name, call in (RAISING | QUIET).items():
            try:
                results[name] = call(manager)
            except EngineDead as error:
                results[name] = error.message[:30]
        return results

    return run_in_fork(calls)


EXPECTED = dict.fromkeys(RAISING, "this process was forked from p") | {**dict.fromkeys(QUIET), "is_running": False}


@pytest.mark.parametrize("is_locked", [False, True])
def test_every_call_in_a_fork_ends_at_once_and_the_open_request_finishes_in_the_parent(is_locked: bool) -> None:
    with fake_manager(SLOW) as manager:
        manager.add_request(PROMPT, "a", 20)
        if is_locked:
            with manager._changed:
                assert results_in_fork(manager) == EXPECTED
        else:
            assert results_in_fork(manager) == EXPECTED
        output = manager.get_result("a")
        assert output is not None and output.generated_tokens == greedy_tokens(PROMPT, 20)


def test_a_manager_that_stops_at_the_fork_is_not_waited_for() -> None:
    with fake_manager(SLOW) as manager:
        manager.add_request(PROMPT, "a", 20)
        manager.stop(block=False)
        assert results_in_fork(manager) == EXPECTED
        manager.join()
        output = manager.get_result("a")
        assert output is not None and output.generated_tokens == greedy_tokens(PROMPT, 20)


def generated(manager: ContinuousBatchingManager) -> list[int]:
    manager.start()
    manager.add_request(PROMPT, "c", 3)
    output = manager.get_result("c")
    manager.stop()
    assert output is not None
    return output.generated_tokens


def test_a_manager_whose_engine_does_not_run_may_start_in_a_fork() -> None:
    expected = greedy_tokens(PROMPT, 3)
    with fake_manager(start=False) as manager:
        assert run_in_fork(lambda: generated(manager)) == expected
        assert generated(manager) == expected
        assert run_in_fork(lambda: generated(manager)) == expected


def test_destroy_in_a_fork_lets_the_model_have_another_manager_there_and_the_parent_keeps_its_own() -> None:
    with fake_manager() as manager:
        manager.model = SimpleNamespace()
        manager.stop(keep_for_next_session=True)
        assert manager.model.__dict__[KEPT] is manager

        def destroy() -> bool:
            manager.destroy()
            return KEPT in manager.model.__dict__

        assert run_in_fork(destroy) is False
        assert KEPT in manager.model.__dict__ and run_in_fork(manager.start).startswith("EngineDead: this process was")
        assert generated(manager) == greedy_tokens(PROMPT, 3)
