"""CompileQueue: requests with a ready grammar go on; rejected, aborted and late ones end once."""

import time
from concurrent.futures import Future

import pytest

from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import EngineDead, InvalidRequest, QueueFull, RequestTimeout, StructuredOutputFailed
from chairlift.core.request import GenerateRequest
from chairlift.engine.structured.compile_queue import CompiledRequest, CompileQueue
from support_engine import make_request, validated
from support_grammars import grammar_of


def add(queue: CompileQueue, name: str = "a", since: float = 0.0, **options: object) -> tuple[GenerateRequest, Future]:
    request, future = make_request(name, 5, **options), Future()
    assert queue.add(validated(request), future, since or time.monotonic()) == []
    return request, future


def test_what_is_ready_leaves_with_its_grammars_and_how_long_it_waited() -> None:
    queue = CompileQueue(9)
    request, future = add(queue, timeout=60.0, since=time.monotonic() - 20)
    assert len(queue) == 1 and "a" in queue and queue.num_tokens == 5
    assert list(queue.requests()) == [(0, request, pytest.approx(20, abs=5))]
    grammar = grammar_of(regex="a")
    future.set_result((grammar,))
    assert queue.abort("a", 2) is None
    compiled = queue.take(request.request_id, future)
    assert isinstance(compiled, CompiledRequest) and compiled.grammars == (grammar,) and compiled.aborted_choices == [2]
    assert compiled.validated.request is request and compiled.waited == pytest.approx(20, abs=5)
    assert len(queue) == 0 and queue.take(request.request_id, future) == []


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(InvalidRequest("no"), InvalidRequest), (ValueError("a fault"), StructuredOutputFailed), (None, EngineDead)],
)
def test_what_has_no_grammar_ends(raised: Exception | None, kind: type[Exception]) -> None:
    queue = CompileQueue(9)
    request, future = add(queue)
    if raised is None:
        future.cancel()
    else:
        future.set_exception(raised)
    (last,) = queue.take(request.request_id, future)
    assert last.is_final and isinstance(last.error, kind) and "a" not in queue


def test_one_too_many_is_refused_and_its_grammar_is_not_made() -> None:
    queue, future = CompileQueue(1), Future()
    add(queue)
    (last,) = queue.add(validated(make_request("b", 5)), future, time.monotonic())
    assert isinstance(last.error, QueueFull) and future.cancelled() and "b" not in queue


def test_an_abort_ends_it_and_its_grammar_is_not_made() -> None:
    queue = CompileQueue(9)
    request, future = add(queue)
    last = queue.abort("a", None)
    assert last is not None and last.is_final and last.finish_reason is FinishReason.ABORT
    assert future.cancelled() and queue.take(request.request_id, future) == []


def test_who_is_late_ends_and_others_wait_on() -> None:
    queue = CompileQueue(9)
    assert queue.seconds_to_next_deadline() is None
    add(queue, "patient")
    request, future = add(queue, "late", timeout=1.0, since=time.monotonic() - 2)
    add(queue, "early", timeout=50.0)
    assert queue.seconds_to_next_deadline() == 0.0
    (last,) = queue.expire()
    assert last.request_id == "late" and isinstance(last.error, RequestTimeout) and "1 s" in str(last.error)
    assert future.cancelled() and queue.take(request.request_id, future) == []
    assert queue.expire() == [] and queue.seconds_to_next_deadline() == pytest.approx(50, abs=5)


def test_who_is_ready_too_late_is_late() -> None:
    queue = CompileQueue(9)
    request, future = add(queue, timeout=1.0, since=time.monotonic() - 2)
    future.set_result(())
    (last,) = queue.take(request.request_id, future)
    assert isinstance(last.error, RequestTimeout)


def test_another_request_of_the_same_name_is_another_one() -> None:
    queue = CompileQueue(9)
    request, first = add(queue)
    queue.abort("a", None)
    queue.add(validated(request), Future(), time.monotonic())
    assert queue.take("a", first) == [] and "a" in queue
    queue.close()
    assert len(queue) == 0
