"""EngineOutput: its defaults and words, the wire, and outputs that are merged."""

import msgspec
import pytest

from chairlift.core.engine_output import EngineOutput, FinishReason, Timeline, TimelineEvent, TokenLogprob, Usage
from chairlift.core.request import RequestPhase


def test_an_output_is_empty_by_default() -> None:
    quiet = EngineOutput("a")
    assert quiet.token_ids == quiet.logprobs == ()
    assert quiet.finish_reason is quiet.error is quiet.usage is quiet.timeline is None


def test_finish_reasons_and_states_are_the_words_of_the_interface() -> None:
    assert {str(reason) for reason in FinishReason} == {"stop", "length", "abort", "error"}
    assert [str(state) for state in RequestPhase] == [
        "pending", "prefilling", "prefilling_split", "split_pending_remainder", "decoding",
        "finished", "failed", "cancelled",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        TokenLogprob(3, -0.5, ((3, -0.5), (9, -1.25))),
        Usage(3, 4, 2),
        Timeline((TimelineEvent("queued", 0.0), TimelineEvent("scheduled", 0.5, "chunk 16")), (("blocks", 0.25),)),
    ],
)
def test_news_survives_the_wire(value: object) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=type(value)) == value


def test_what_was_said_in_a_row_can_be_said_at_once() -> None:
    one = TokenLogprob(1, -0.5)
    timeline = Timeline((TimelineEvent("queued", 0.0),))
    row = [
        EngineOutput("r", (1,), (one,), choice_index=2, prompt_logprobs=(one,)),
        EngineOutput("r", (2, 3), (one, one), choice_index=2),
        EngineOutput("r", (), timeline=timeline, choice_index=2),
        EngineOutput("r", (4,), (one,), FinishReason.LENGTH, usage=Usage(1, 4, 0), choice_index=2),
    ]  # fmt: skip
    assert EngineOutput.merged(row) == EngineOutput(
        "r", (1, 2, 3, 4), (one,) * 4, FinishReason.LENGTH, None, Usage(1, 4, 0), timeline, 2, (one,)
    )
    assert EngineOutput.merged(row[:1]) is row[0]
