"""Responses of embeddings, scores and rankings from given hidden states."""

import base64
from typing import Any

import numpy as np
import pytest

from chairlift.core.engine_output import Usage
from chairlift.llm.outputs import RequestOutput
from chairlift.llm.text_event import TextEvent
from chairlift.server.openai.response_renderers import ResponseMeta
from chairlift.server.pooling.pooling_renderers import EmbeddingRenderer, RerankRenderer, ScoreRenderer
from chairlift.server.pooling.pooling_request import read_embedding, read_rerank, read_score

META = ResponseMeta("id-1", "m", 7)


def results_of(*states: list[float]) -> list[RequestOutput]:
    return [
        RequestOutput("r", None, [1, 2], [], Usage(2, 0, 0), embedding=np.array(each, np.float32).tobytes())
        for each in states
    ]


def embedding_of(body: dict[str, Any], states: list[float]) -> Any:
    renderer = EmbeddingRenderer(read_embedding({"model": "m", "input": "a"} | body))
    embedding = renderer.full_response(results_of(states))["data"][0]["embedding"]
    return embedding if isinstance(embedding, str) else embedding.tolist()


def test_numbers_and_their_length() -> None:
    assert embedding_of({}, [3, 4]) == pytest.approx([0.6, 0.8])
    assert embedding_of({"normalize": False}, [3, 4]) == [3, 4]
    assert embedding_of({"dimensions": 1}, [3, 4]) == [1]


def test_base64_is_float32_with_the_lowest_byte_first() -> None:
    encoded = embedding_of({"normalize": False, "encoding_format": "base64"}, [1, -2])
    assert base64.b64decode(encoded) == b"\x00\x00\x80?\x00\x00\x00\xc0"


def test_documents_of_equal_scores_stay_in_order() -> None:
    request = read_rerank({"model": "m", "query": "q", "documents": ["a", "b", "c"]})
    body = RerankRenderer(request, META).full_response(results_of([1, 0], [0, 1], [2, 0], [0, 3]))
    assert [each["index"] for each in body["results"]] == [1, 0, 2]
    assert [each["relevance_score"] for each in body["results"]] == [1, 0, 0]
    assert body["usage"] == {"prompt_tokens": 8, "total_tokens": 8} and body["id"] == "id-1"


def test_scores_are_in_the_order_of_the_texts() -> None:
    request = read_score({"model": "m", "text_1": "q", "text_2": ["a", "b"]})
    body = ScoreRenderer(request, META).full_response(results_of([1, 0], [-1, 0], [1, 1]))
    assert [each["score"] for each in body["data"]] == pytest.approx([-1, 0.5**0.5])
    assert body["object"] == "list" and body["created"] == 7


def test_nothing_is_streamed() -> None:
    renderer = EmbeddingRenderer(read_embedding({"model": "m", "input": "a"}))
    assert renderer.event(0, TextEvent("r")) == renderer.progress(0, TextEvent("r")) == b""
    assert renderer.usage(Usage(1, 0, 0)) == b""
