"""RetryGate: after a busy response nothing begins for a while, then one request alone, then all."""

from chairlift.web.batch_api.retry_gate import RetryGate


def test_an_open_gate_lets_all_begin() -> None:
    gate = RetryGate()
    assert gate.may_begin(0.0) and not gate.begin() and gate.may_begin(0.0)


def test_one_request_begins_alone_and_its_response_decides() -> None:
    gate = RetryGate()
    gate.pause(10.0, 4.0, is_alone=False)
    assert [gate.may_begin(now) for now in (10.0, 13.9, 14.0)] == [False, False, True]
    assert gate.begin() and not gate.may_begin(99.0)
    gate.pause(20.0, None, is_alone=True)
    gate.end(is_alone=True)
    assert [gate.may_begin(now) for now in (20.9, 21.0)] == [False, True], "0.5 s, twice"
    assert gate.begin()
    gate.open()
    gate.end(is_alone=True)
    assert gate.may_begin(21.0) and not gate.begin()


def test_an_aborted_request_and_those_that_began_before_leave_the_gate_as_it_is() -> None:
    gate = RetryGate()
    gate.pause(0.0, 1.0, is_alone=False)
    assert gate.begin()
    gate.end(is_alone=False)
    assert not gate.may_begin(5.0)
    gate.pause(0.0, 9.0, is_alone=False)
    gate.end(is_alone=True)
    assert [gate.may_begin(now) for now in (8.9, 9.0)] == [False, True], "the longest pause holds"


def test_no_pause_is_longer_than_half_a_minute() -> None:
    gate = RetryGate()
    gate.pause(0.0, 3600.0, is_alone=False)
    assert [gate.may_begin(now) for now in (29.9, 30.0)] == [False, True]
