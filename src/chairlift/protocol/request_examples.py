"""EXAMPLES: a body for each route that generates, embeds or counts, for the OpenAPI document and its page."""

from collections.abc import Mapping, Sequence
from typing import Any

QUESTION = "What is the capital of France?"
_MESSAGES = [{"role": "user", "content": QUESTION}]
_CONVERSATION = [*_MESSAGES, {"role": "assistant", "content": "Paris."}]
_TEXTS = ["A cat sleeps.", "Paris is the capital of France."]
_WEATHER: dict[str, Any] = {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False,
}  # fmt: skip
_ABOUT_WEATHER = {"name": "get_weather", "description": "Get the weather of a city."}

EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {"messages": _MESSAGES, "max_tokens": 32, "temperature": 0},
    "/v1/completions": {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0},
    "/v1/responses": {
        "input": QUESTION, "instructions": "Answer briefly.", "max_output_tokens": 64,
        "tools": [{"type": "function", **_ABOUT_WEATHER, "parameters": _WEATHER}],
    },
    "/v1/responses/compact": {"input": _CONVERSATION, "max_output_tokens": 64},
    "/v1/responses/input_tokens": {"input": QUESTION, "instructions": "Answer briefly."},
    "/v1/messages": {
        "messages": _MESSAGES, "max_tokens": 64, "system": "Answer briefly.",
        "tools": [{**_ABOUT_WEATHER, "input_schema": _WEATHER}],
    },
    "/v1/messages/count_tokens": {"messages": _MESSAGES, "system": "Answer briefly."},
    "/v1/embeddings": {"input": _TEXTS},
    "/v1/score": {"text_1": QUESTION, "text_2": _TEXTS},
    "/v1/rerank": {"query": QUESTION, "documents": _TEXTS, "top_n": 1},
    "/tokenize": {"messages": _MESSAGES},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/api/chat": {"messages": _MESSAGES, "stream": False, "options": {"temperature": 0, "num_predict": 32}},
    "/api/generate": {"prompt": QUESTION, "stream": False},
    "/api/embed": {"input": _TEXTS},
    "/api/embeddings": {"prompt": QUESTION},
    "/api/show": {},
}  # fmt: skip
"""Path of a POST route -> a body without the model."""


def add_examples(paths: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> None:
    """Add the examples to the operations of a document, with the first of the model's `names`, or MODEL."""
    for path, example in EXAMPLES.items():
        body = paths.get(path, {}).get("post", {}).get("requestBody")
        if body is not None:
            body["content"]["application/json"]["example"] = {"model": names[0] if names else "MODEL", **example}
