"""COMPACTIONS: every field of the published request type is declared, and what a summary has no use for is ignored."""

import typing

from openai.types.responses.response_compact_params import ResponseCompactParams

from chairlift.protocol.request_fields import Effect
from chairlift.protocol.responses.compaction_request_fields import COMPACTIONS, SUMMARY_FIELDS, TRIGGERED
from chairlift.protocol.responses.responses_request_fields import RESPONSES


def test_every_published_field_is_declared() -> None:
    assert set(typing.get_type_hints(ResponseCompactParams)) <= COMPACTIONS.keys() == RESPONSES.keys()


def test_the_effects() -> None:
    used = {name for name, field in COMPACTIONS.items() if field.effect is Effect.USED}
    assert used == set(SUMMARY_FIELDS)
    refused = {name for name, field in COMPACTIONS.items() if field.effect is Effect.REFUSED}
    assert refused == {name for name, field in RESPONSES.items() if field.effect is Effect.REFUSED} | {"stream"}
    assert not any(field.required for field in COMPACTIONS.values())


def test_the_effects_beside_a_trigger() -> None:
    used = {name for name, field in TRIGGERED.items() if field.effect is Effect.USED}
    assert used == {*SUMMARY_FIELDS, "metadata", "store", "stream"} and TRIGGERED.keys() == RESPONSES.keys()
    assert all(TRIGGERED[name] is RESPONSES[name] for name in used)
    refused = {name for name, field in TRIGGERED.items() if field.effect is Effect.REFUSED}
    assert refused == {name for name, field in RESPONSES.items() if field.effect is Effect.REFUSED}
