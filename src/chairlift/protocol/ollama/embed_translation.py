"""EmbedTranslation: a request of /api/embed or /api/embeddings as one of /v1/embeddings, and its response back."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.core.sampling_params import MAX_TOKENS
from chairlift.core.validation import boolean, integer, invalid_param
from chairlift.protocol.field_check import format_short, split_fields
from chairlift.protocol.ollama.answer_writer import NANOSECONDS
from chairlift.protocol.ollama.fields import EMBED, EMBEDDINGS
from chairlift.protocol.translation.base import JSON_LINES, FieldNames, Json, StreamTranslation


class EmbedTranslation:
    """One translated request; see Translation.

    Attributes:
        load_reason: what a request without a text is; "" for one with a text.
    """

    stream_type = JSON_LINES

    def __init__(self, body: Mapping[str, Any], *, has_one_prompt: bool) -> None:
        """Translate a body, of /api/embeddings with `has_one_prompt`. Raises InvalidRequest."""
        fields, ignored = split_fields(body, EMBEDDINGS if has_one_prompt else EMBED)
        self._model, self._has_one_prompt = fields.get("model", ""), has_one_prompt
        self._started_at = time.monotonic()
        self.body: Json = {"model": self._model}
        if has_one_prompt:
            texts = fields.get("prompt", "")
            if not isinstance(texts, str):
                raise invalid_param("prompt", f"must be a string, got {format_short(texts)}")
            self.body["normalize"] = False
        else:
            texts = fields["input"]
            for index, text in enumerate(texts if isinstance(texts, list) else ()):
                if not isinstance(text, str):
                    raise invalid_param(f"input[{index}]", f"must be a string, got {format_short(text)}")
            if boolean("truncate", fields.get("truncate", False)):
                ignored = (*ignored, "truncate")
            if "dimensions" in fields:
                self.body["dimensions"] = integer("dimensions", fields["dimensions"], 1, MAX_TOKENS)
        self.body["input"] = texts
        self.ignored: Sequence[str] = ignored
        self.names = FieldNames({"input": "prompt"} if has_one_prompt else {})
        self.load_reason = "" if texts or not isinstance(texts, str | list) else "load"

    def response(self, response: Json) -> Json:
        """See Translation."""
        vectors = [each["embedding"] for each in response["data"]]
        if self._has_one_prompt:
            return {"embedding": vectors[0]}
        return {
            "model": self._model or response["model"], "embeddings": vectors,
            "total_duration": round((time.monotonic() - self._started_at) * NANOSECONDS), "load_duration": 0,
            "prompt_eval_count": response["usage"]["prompt_tokens"],
        }  # fmt: skip

    def loaded(self, model: str) -> Json:
        """Return the response to a request without a text; `model` is the served name of its model."""
        return {"embedding": []} if self._has_one_prompt else {"model": self._model or model, "embeddings": []}

    def stream(self) -> StreamTranslation:
        """Raise AssertionError: embeddings come whole."""
        raise AssertionError("a response with embeddings is no stream")
