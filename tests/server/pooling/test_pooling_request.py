"""Bodies of the routes of pooled hidden states become typed requests; the errors are in test_pooling_routes.py."""

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.request_fields import MAX_INPUTS
from chairlift.server.pooling.pooling_request import read_embedding, read_rerank, read_score

MODEL = {"model": "m"}


def test_the_defaults_of_an_embedding() -> None:
    request = read_embedding(MODEL | {"input": "a"})
    assert request.prompts == ("a",) and request.pooling is None and not request.is_base64
    assert request.options.dimensions is None and request.options.normalize
    assert not request.stream and request.params.max_tokens == 1


@pytest.mark.parametrize(
    ("value", "prompts"),
    [(["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3))), (["a"] * MAX_INPUTS, None)],
)
def test_inputs_are_texts_or_ids(value: Any, prompts: Any) -> None:
    assert read_embedding(MODEL | {"input": value}).prompts == (prompts or tuple(value))


def test_null_is_absent() -> None:
    optional = dict.fromkeys(("dimensions", "encoding_format", "pooling", "normalize", "timeout", "user", "cache_salt"))
    assert read_embedding(MODEL | {"input": "a"} | optional) == read_embedding(MODEL | {"input": "a"})


def test_all_fields_of_an_embedding() -> None:
    body = {"input": "a", "dimensions": 3, "encoding_format": "base64", "pooling": "mean", "normalize": False}
    request = read_embedding(MODEL | body | {"priority": 2, "timeout": 1.5, "cache_salt": "s", "user": "u"})
    assert (request.options.dimensions, request.options.normalize, request.is_base64) == (3, False, True)
    assert (request.pooling, request.priority, request.timeout) == ("mean", 2, 1.5)
    assert (request.cache_salt, request.user) == ("s", "u")


def test_texts_of_a_score_follow_each_other() -> None:
    request = read_score(MODEL | {"text_1": ["a", "b"], "text_2": ["c", "d"]})
    assert request.prompts == ("a", "b", "c", "d") and request.num_first == 2


def test_the_query_comes_before_the_documents_and_zero_is_all() -> None:
    request = read_rerank(MODEL | {"query": "q", "documents": ["a", {"text": "b", "title": "t"}], "top_n": 0})
    assert request.prompts == ("q", "a", "b") and request.top_n is None and request.returns_documents


def test_fields_of_other_routes_have_no_effect() -> None:
    assert read_embedding(MODEL | {"input": "a", "temperature": 0.5, "input_type": "query"}).ignored == (
        "temperature", "input_type"
    )  # fmt: skip


def test_refused_fields_say_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match="max_tokens_per_doc is not supported: shorten the documents"):
        read_rerank(MODEL | {"query": "q", "documents": ["a"], "max_tokens_per_doc": 5})
