"""COMPACTIONS and TRIGGERED: the fields of a body that asks for a summary, for each of the two routes."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from chairlift.protocol.request_fields import Effect, Field
from chairlift.protocol.responses.responses_request_fields import PATH as RESPONSES_PATH
from chairlift.protocol.responses.responses_request_fields import RESPONSES

PATH = f"{RESPONSES_PATH}/compact"

SUMMARY_FIELDS = (
    "model", "input", "instructions", "previous_response_id", "tools", "reasoning", "max_output_tokens", "temperature",
    "top_p", "seed", "presence_penalty", "frequency_penalty", "top_k", "min_p", "typical_p", "epsilon_cutoff",
    "eta_cutoff", "repetition_penalty", "priority", "timeout", "cache_salt", "chat_template_kwargs", "user",
)  # fmt: skip
"""Fields of a request for a response that apply to a summary, too."""


_OF_RESPONSE = ("input", "metadata", "store", "stream")
"""Further fields that apply to a response which has a summary."""


def _summary_field(name: str, field: Field, also: Collection[str] = ()) -> Field:
    if name in SUMMARY_FIELDS or name in also or field.effect is not Effect.USED:
        return field
    return Field({}, "has no effect on a summary", Effect.IGNORED)


COMPACTIONS: Mapping[str, Field] = {
    **{name: _summary_field(name, field) for name, field in RESPONSES.items()},
    "input": replace(RESPONSES["input"], required=False),
    "tools": replace(RESPONSES["tools"], help="the tools of the conversation's calls; the summary calls none"),
    "max_output_tokens": replace(
        RESPONSES["max_output_tokens"], help="maximum number of tokens of the summary; without it as many as fit"
    ),
    "stream": Field({"enum": [None, False]}, "a compaction comes whole", Effect.REFUSED, neutral=(False,)),
}  # fmt: skip
"""Name of each field of /v1/responses/compact -> its declaration."""

TRIGGERED: Mapping[str, Field] = {name: _summary_field(name, field, _OF_RESPONSE) for name, field in RESPONSES.items()}
"""Name of each field of a request of /v1/responses that ends with a trigger -> its declaration."""
