"""Timeline, TimelineEvent: the same after encoding and decoding, and kept by EngineOutput.merged."""

import msgspec
import pytest

from chairlift.core.engine_output import EngineOutput, FinishReason, TokenLogprob, Usage
from chairlift.core.request_timeline import Timeline, TimelineEvent


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
