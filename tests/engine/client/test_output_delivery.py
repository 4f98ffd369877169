"""call_sinks calls each sink once, with its outputs in order; a sink that raises keeps nothing from the others."""

from collections.abc import Iterator

import pytest

from chairlift.core.engine_output import EngineOutput
from chairlift.engine.client.output_delivery import call_sinks
from support_process import RecordingSink


def test_each_sink_gets_its_outputs_in_one_call_and_in_order() -> None:
    one, two = RecordingSink(), RecordingSink()
    first, second, third = (EngineOutput(name, (token,)) for name, token in (("a", 1), ("b", 2), ("a", 3)))
    call_sinks([(one, first), (two, second), (one, third)])
    assert (one.batches, two.batches) == ([[first, third]], [[second]])


def test_sinks_are_called_after_the_last_output_was_taken() -> None:
    sink, num_calls = RecordingSink(), list[int]()

    def outputs() -> Iterator[tuple[RecordingSink, EngineOutput]]:
        for number in range(3):
            num_calls.append(len(sink.batches))
            yield sink, EngineOutput("a", (number,))

    call_sinks(outputs())
    assert num_calls == [0, 0, 0] and len(sink.batches) == 1


def test_a_sink_that_raises_is_logged_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    def bad(outputs: list[EngineOutput]) -> None:
        raise RuntimeError("bad sink")

    sink = RecordingSink()
    call_sinks([(bad, EngineOutput("bad")), (sink, EngineOutput("good", (1,)))])
    assert sink.batches == [[EngineOutput("good", (1,))]]
    assert "a sink raised" in caplog.text and "bad sink" in caplog.text
