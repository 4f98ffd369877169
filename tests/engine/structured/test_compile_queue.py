"""CompileQueue: requests with a ready grammar go on; rejected, aborted and late ones end once."""

import time
from concurrent.futures import Future

import pytest

from chairlift.core.errors import EngineDead, InvalidRequest, QueueFull, RequestTimeout, StructuredOutputFailed
from chairlift.core.request import FinishReason, GenerateRequest
from chairlift.engine.structured.compile_queue import CompiledRequest, CompileQueue
from support_engine import make_request, validated
from support_structure import grammar_of


def made(
    preparing: CompileQueue, name: str = "a", since: float = 0.0, **options: object
) -> tuple[GenerateRequest, Future]:
    request, future = make_request(name, 5, **options), Future()
    assert preparing.add(validated(request), future, since or time.monotonic()) == []
    return request, future


def test_what_is_ready_leaves_with_its_grammars_and_how_long_it_waited() -> None:
    preparing = CompileQueue(9)
    request, future = made(preparing, timeout=60.0, since=time.monotonic() - 20)
    assert len(preparing) == 1 and "a" in preparing and preparing.num_tokens == 5
    grammar = grammar_of(regex="a")
    future.set_result((grammar,))
    assert preparing.abort("a", 2) is None
    prepared = preparing.take(request.request_id, future)
    assert isinstance(prepared, CompiledRequest) and prepared.grammars == (grammar,) and prepared.aborted_choices == [2]
    assert prepared.validated.request is request and prepared.waited == pytest.approx(20, abs=5)
    assert len(preparing) == 0 and preparing.take(request.request_id, future) == []


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(InvalidRequest("no"), InvalidRequest), (ValueError("a fault"), StructuredOutputFailed), (None, EngineDead)],
)
def test_what_has_no_grammar_ends(raised: Exception | None, kind: type[Exception]) -> None:
    preparing = CompileQueue(9)
    request, future = made(preparing)
    if raised is None:
        future.cancel()
    else:
        future.set_exception(raised)
    (last,) = preparing.take(request.request_id, future)
    assert last.is_final and isinstance(last.error, kind) and "a" not in preparing


def test_one_too_many_is_refused_and_its_grammar_is_not_made() -> None:
    preparing, future = CompileQueue(1), Future()
    made(preparing)
    (last,) = preparing.add(validated(make_request("b", 5)), future, time.monotonic())
    assert isinstance(last.error, QueueFull) and future.cancelled() and "b" not in preparing


def test_an_abort_ends_it_and_its_grammar_is_not_made() -> None:
    preparing = CompileQueue(9)
    request, future = made(preparing)
    last = preparing.abort("a", None)
    assert last is not None and last.is_final and last.finish_reason is FinishReason.ABORT
    assert future.cancelled() and preparing.take(request.request_id, future) == []


def test_who_is_late_ends_and_others_wait_on() -> None:
    preparing = CompileQueue(9)
    assert preparing.seconds_to_next_deadline() is None
    made(preparing, "patient")
    request, future = made(preparing, "late", timeout=1.0, since=time.monotonic() - 2)
    made(preparing, "early", timeout=50.0)
    assert preparing.seconds_to_next_deadline() == 0.0
    (last,) = preparing.expire()
    assert last.request_id == "late" and isinstance(last.error, RequestTimeout) and "1 s" in str(last.error)
    assert future.cancelled() and preparing.take(request.request_id, future) == []
    assert preparing.expire() == [] and preparing.seconds_to_next_deadline() == pytest.approx(50, abs=5)


def test_who_is_ready_too_late_is_late() -> None:
    preparing = CompileQueue(9)
    request, future = made(preparing, timeout=1.0, since=time.monotonic() - 2)
    future.set_result(())
    (last,) = preparing.take(request.request_id, future)
    assert isinstance(last.error, RequestTimeout)


def test_another_request_of_the_same_name_is_another_one() -> None:
    preparing = CompileQueue(9)
    request, first = made(preparing)
    preparing.abort("a", None)
    preparing.add(validated(request), Future(), time.monotonic())
    assert preparing.take("a", first) == [] and "a" in preparing
    preparing.close()
    assert len(preparing) == 0
