"""InlineClient in a fork of its process: every call raises or returns at once, and the engine does not notice."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from chairlift.core.errors import EngineDead
from chairlift.engine.client.engine_thread_calls import fail_all, inspect
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.runner.fake import FakeRunner
from support_engine import RequestSink, make_request
from support_inline import FAKE, StepGate, start_client
from support_os_fork import run_in_fork

RAISING: dict[str, Callable[[InlineClient], Any]] = {
    "submit": lambda client: client.submit(make_request("b", 9, 2), print),
    "scheduler_state": lambda client: client.scheduler_state(),
    "cache_state": lambda client: client.cache_state(),
    "batch_snapshot": lambda client: client.batch_snapshot(),
    "check_integrity": lambda client: client.check_integrity(),
    "flush_cache": lambda client: client.flush_cache(),
    "warmup": lambda client: client.warmup(),
    "paused": lambda client: client.paused().__enter__(),
    "inspect": lambda client: inspect(client, lambda loop: None),
    "fail_all": lambda client: fail_all(client, EngineDead("no")),
}

QUIET: dict[str, Callable[[InlineClient], Any]] = {
    "abort": lambda client: client.abort("a"),
    "close": lambda client: client.close(),
    "load": lambda client: str(client.load().state),
    "state": lambda client: str(client.state),
    "post": lambda client: client.post(lambda: None),
}
RESULTS = {"abort": None, "close": None, "load": "dead", "state": "dead", "post": False}


@pytest.mark.parametrize("is_locked", [False, True])
def test_every_call_in_a_fork_ends_at_once_also_where_the_fork_has_inherited_a_held_lock(is_locked: bool) -> None:
    gate = StepGate()
    with closing(start_client(FakeRunner(FAKE, hook=gate))) as client:
        sink = RequestSink()
        client.submit(make_request("a", 9, 4), sink)
        assert gate.entered.wait(30)

        def calls() -> dict[str, Any]:
            results: dict[str, Any] = {}
            for name, call in (RAISING | QUIET).items():
                try:
                    results[name] = call(client)
                except EngineDead as error:
                    results[name] = error.message[:30]
            return results

        if is_locked:
            with client._awake:
                results = run_in_fork(calls)
        else:
            results = run_in_fork(calls)
        assert results == dict.fromkeys(RAISING, "this process was forked from p") | RESULTS
        gate.opened.set()
        assert sink.wait().error is None and client.check_integrity() == []
