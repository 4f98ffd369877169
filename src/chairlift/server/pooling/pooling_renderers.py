"""Renderers of /v1/embeddings, /v1/score and /v1/rerank, whose responses come whole."""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chairlift.core.engine_output import Usage
from chairlift.llm.embedding_and_score_outputs import Vector, score_pairs
from chairlift.llm.outputs import RequestOutput
from chairlift.llm.text_event import TextEvent
from chairlift.server.openai.response_renderers import ResponseMeta, total
from chairlift.server.pooling.pooling_request import EmbeddingRequest, RerankRequest, ScoreRequest


class _WholeResponse:
    """The parts of a Renderer (server/openai/response_renderers.py) that a response without tokens does not have."""

    def event(self, number: int, event: TextEvent) -> bytes:
        """Return nothing: no such response is streamed."""
        return b""

    def progress(self, number: int, event: TextEvent) -> bytes:
        """Return nothing: there are no tokens whose progress could be shown."""
        return b""

    def usage(self, usage: Usage) -> bytes:
        """Return nothing: no such response is streamed."""
        return b""


@dataclass(frozen=True, slots=True)
class EmbeddingRenderer(_WholeResponse):
    """Renders responses of /v1/embeddings."""

    request: EmbeddingRequest

    def full_response(self, results: Sequence[RequestOutput]) -> dict[str, Any]:
        """See Renderer."""
        vectors = [self.request.options.finish(result.embedding) for result in results]
        data = [
            {"object": "embedding", "index": index, "embedding": self._encode(vector)}
            for index, vector in enumerate(vectors)
        ]
        return {"object": "list", "data": data, "model": self.request.model, "usage": _usage(results)}

    def _encode(self, vector: Vector) -> Any:
        """Return an embedding for orjson, which writes an array as numbers."""
        if self.request.is_base64:
            return b64encode(vector.astype("<f4").tobytes()).decode()
        return np.ascontiguousarray(vector)


@dataclass(frozen=True, slots=True)
class ScoreRenderer(_WholeResponse):
    """Renders responses of /v1/score."""

    request: ScoreRequest
    meta: ResponseMeta

    def full_response(self, results: Sequence[RequestOutput]) -> dict[str, Any]:
        """See Renderer."""
        scores = score_pairs(results[: self.request.num_first], results[self.request.num_first :])
        data = [{"index": index, "object": "score", "score": each.score} for index, each in enumerate(scores)]
        return {
            "id": self.meta.id, "object": "list", "created": self.meta.created, "model": self.meta.model, "data": data,
            "usage": _usage(results),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class RerankRenderer(_WholeResponse):
    """Renders responses of /v1/rerank: the documents, the most similar first."""

    request: RerankRequest
    meta: ResponseMeta

    def full_response(self, results: Sequence[RequestOutput]) -> dict[str, Any]:
        """See Renderer."""
        scores = [each.score for each in score_pairs(results[:1], results[1:])]
        order = np.argsort([-score for score in scores], kind="stable")[: self.request.top_n].tolist()
        ranked = [
            {"index": index, "relevance_score": scores[index]}
            | ({"document": {"text": self.request.prompts[1 + index]}} if self.request.returns_documents else {})
            for index in order
        ]
        return {"id": self.meta.id, "model": self.meta.model, "results": ranked, "usage": _usage(results)}


def _usage(results: Iterable[RequestOutput]) -> dict[str, int]:
    tokens = total(result.usage for result in results).prompt_tokens
    return {"prompt_tokens": tokens, "total_tokens": tokens}
