"""TextEvent: the final one is the one with the usage, not one that ends a choice."""

from chairlift.core.engine_output import Usage
from chairlift.llm.text_event import TextEvent


def test_the_last_event_is_the_one_with_the_usage_and_not_one_that_ends_a_choice() -> None:
    first = TextEvent("a", "x", (1,), (), "length", index=1)
    assert not first.is_final
    assert TextEvent("a", "y", (2,), (), "length", usage=Usage(1, 2, 0)).is_final
