"""EngineOutput: its defaults and words, the wire, and outputs that are merged."""

from chairlift.core.engine_output import EngineOutput, FinishReason
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
