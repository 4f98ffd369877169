"""RequestKind: one kind of request whose response must not change when its replica is lost; KINDS has all of them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NUM_TOKENS = 170
"""Tokens of most responses: enough that 100 of them are delivered when a replica is lost."""

SENTENCE = "The harbour of Rotterdam handles more than four hundred million tonnes of goods in a year. "
ARGUMENTS = json.dumps({"city": "Rotterdam", "note": SENTENCE + "Bring a coat."})
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "note": {"type": "string"}},
    "required": ["city", "note"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}


class Model(StrEnum):
    """What the replicas of a fleet serve."""

    FAKE = "fake"  # tokens are a hash of the context; fast
    SCRIPTED = "scripted"  # repeats the last message, with grammars, tools and reasoning
    DEMO = "chairlift:demo"  # the embedded model


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestKind:
    """A kind of request.

    Attributes:
        name: what is special about it.
        model: model of the replicas that it needs.
        path: its route.
        fields: its body without model, prompt and stream.
        prompt: the prompt or the last message of its request number N.
        is_streamed: whether the response is a stream.
        stop_at: part of the uncut text that becomes the stop string, from 0 to 1; None for none.
    """

    name: str
    model: Model = Model.FAKE
    path: str = CHAT
    fields: Mapping[str, Any] = field(default_factory=dict)
    prompt: Callable[[int], Any] = "Hello, this is request {}".format
    is_streamed: bool = True
    stop_at: tuple[float, float] | None = None

    def body(self, number: int) -> dict[str, Any]:
        """Return the body of the request with this number; its seed is the number where sampling needs one."""
        prompt = self.prompt(number)
        is_chat = self.path == CHAT
        body: dict[str, Any] = {"model": self.model.value, "max_tokens": NUM_TOKENS, "seed": number}
        body |= {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}
        if self.is_streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body | dict(self.fields)


def _repeat(text: str) -> Callable[[int], str]:
    """Return a prompt that a scripted model answers with this text."""
    return lambda _number: text


SAMPLED = {"temperature": 1.0, "ignore_eos": True}
GREEDY = {"temperature": 0.0, "ignore_eos": True}
COUNTED = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
LONG = {"max_tokens": 600}
THINKING = f"<think>\n{SENTENCE}\n</think>\n\n"

FAKE_KINDS = (
    RequestKind(name="greedy", fields=GREEDY),
    RequestKind(name="seeded", fields=SAMPLED),
    RequestKind(name="n = 2", fields={**SAMPLED, "n": 2}),
    RequestKind(name="logprobs", fields={**SAMPLED, "logprobs": True, "top_logprobs": 0}),
    RequestKind(name="token ids", fields={**SAMPLED, "return_token_ids": True}),
    RequestKind(name="counts in each chunk", fields={**SAMPLED, "n": 2, **COUNTED}),
    RequestKind(
        name="completion with counts and ids", path=COMPLETIONS, fields={**SAMPLED, **COUNTED, "return_token_ids": True}
    ),
    RequestKind(name="stop string", fields=SAMPLED, stop_at=(0.5, 0.75)),
    RequestKind(name="stop string kept", fields={**SAMPLED, "include_stop_str_in_output": True}, stop_at=(0.55, 0.65)),
    RequestKind(name="completion", path=COMPLETIONS, fields={**SAMPLED, "logprobs": 0}),
    RequestKind(
        name="echo of two prompts", path=COMPLETIONS, fields={**SAMPLED, "echo": True, "n": 2, "logprobs": 0},
        prompt=lambda number: [f"First {number}", f"Second {number}"],
    ),
    RequestKind(name="not streamed", fields={**SAMPLED, "n": 2, "logprobs": True}, is_streamed=False),
    RequestKind(
        name="completion not streamed", path=COMPLETIONS, fields={**SAMPLED, "echo": True, "logprobs": 0},
        is_streamed=False,
    ),
    RequestKind(name="not streamed stop string", fields=SAMPLED, is_streamed=False, stop_at=(0.5, 0.75)),
)  # fmt: skip
SCRIPTED_KINDS = (
    RequestKind(name="tools", model=Model.SCRIPTED, fields={**LONG, "tools": [TOOL]}, prompt=_repeat(CALL)),
    RequestKind(
        name="two tool calls", model=Model.SCRIPTED, fields={**LONG, "tools": [TOOL]},
        prompt=_repeat(f"{SENTENCE}\n{CALL}\n{CALL}"),
    ),
    RequestKind(
        name="forced tool", model=Model.SCRIPTED, prompt=_repeat(ARGUMENTS),
        fields={**LONG, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
    ),
    RequestKind(
        name="required tool", model=Model.SCRIPTED, prompt=_repeat(CALL),
        fields={**LONG, "tools": [TOOL], "tool_choice": "required"},
    ),
    RequestKind(name="reasoning", model=Model.SCRIPTED, fields=LONG, prompt=_repeat(THINKING + SENTENCE)),
    RequestKind(
        name="reasoning and tools", model=Model.SCRIPTED, fields={**LONG, "tools": [TOOL]},
        prompt=_repeat(THINKING + CALL),
    ),
    RequestKind(
        name="JSON schema", model=Model.SCRIPTED, fields={**LONG, "response_format": JSON_SCHEMA},
        prompt=_repeat(ARGUMENTS),
    ),
    RequestKind(
        name="regex", model=Model.SCRIPTED, prompt=_repeat(SENTENCE),
        fields={**LONG, "structured_outputs": {"regex": "[A-Za-z. ]{120,200}"}},
    ),
    RequestKind(
        name="tools not streamed", model=Model.SCRIPTED, fields={**LONG, "tools": [TOOL]}, is_streamed=False,
        prompt=_repeat(THINKING + CALL),
    ),
    RequestKind(
        name="reasoning not streamed", model=Model.SCRIPTED, fields=LONG, is_streamed=False,
        prompt=_repeat(THINKING + SENTENCE),
    ),
)  # fmt: skip
PENALTIES = {**SAMPLED, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1}
PREDICTION = {"prediction": {"type": "content", "content": 5 * SENTENCE}}
DEMO_KINDS = (
    RequestKind(name="prediction", model=Model.DEMO, fields={**GREEDY, **PREDICTION}, prompt=_repeat(5 * SENTENCE)),
    RequestKind(
        name="seeded prediction", model=Model.DEMO, fields={**SAMPLED, **PREDICTION, "n": 2, "logprobs": True},
    ),
    RequestKind(name="demo greedy", model=Model.DEMO, fields=GREEDY),
    RequestKind(name="demo seeded", model=Model.DEMO, fields=SAMPLED),
    RequestKind(name="penalties", model=Model.DEMO, fields=PENALTIES),
    RequestKind(name="top logprobs", model=Model.DEMO, fields={**SAMPLED, "logprobs": True, "top_logprobs": 3}),
    RequestKind(
        name="seeded JSON schema", model=Model.DEMO, fields={"temperature": 1.0, "response_format": JSON_SCHEMA},
    ),
    RequestKind(
        name="seeded regex", model=Model.DEMO,
        fields={"temperature": 1.0, "structured_outputs": {"regex": "[a-z ]{300,400}"}},
    ),
    RequestKind(
        name="seeded forced tool", model=Model.DEMO,
        fields={"temperature": 1.0, "tools": [TOOL], "tool_choice": "required"},
    ),
    RequestKind(name="min tokens", model=Model.DEMO, fields={"temperature": 1.0, "min_tokens": 130, "n": 2}),
    RequestKind(name="demo stop string", model=Model.DEMO, fields=SAMPLED, stop_at=(0.4, 0.7)),
    RequestKind(
        name="demo echo", model=Model.DEMO, path=COMPLETIONS, fields={**PENALTIES, "echo": True, "logprobs": 2},
        prompt=lambda number: [f"A ship {number}", "The sea"],
    ),
    RequestKind(
        name="demo not streamed", model=Model.DEMO, fields={**PENALTIES, "n": 2, "logprobs": True, "top_logprobs": 2},
        is_streamed=False,
    ),
)  # fmt: skip
KINDS = {Model.FAKE: FAKE_KINDS, Model.SCRIPTED: SCRIPTED_KINDS, Model.DEMO: DEMO_KINDS}
