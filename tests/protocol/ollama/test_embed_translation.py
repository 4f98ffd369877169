"""EmbedTranslation: texts of /api/embed and /api/embeddings, and their embeddings."""

from typing import Any

import pytest
from ollama import EmbeddingsResponse, EmbedResponse

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.ollama.embed_translation import EmbedTranslation
from support_sdk_schemas import checked_closely

RESPONSE = {"data": [{"embedding": [1.0, 0.5]}, {"embedding": [0.0, 2.0]}], "usage": {"prompt_tokens": 3}}


def embed(**fields: Any) -> EmbedTranslation:
    return EmbedTranslation({"model": "m:latest", **fields}, has_one_prompt=False)


def embeddings(**fields: Any) -> EmbedTranslation:
    return EmbedTranslation({"model": "m", **fields}, has_one_prompt=True)


def test_several_texts() -> None:
    request = embed(input=["a", "b"], dimensions=2, truncate=False, keep_alive=0, options={"num_ctx": 1})
    assert request.body == {"model": "m:latest", "input": ["a", "b"], "dimensions": 2} and request.load_reason == ""
    assert request.ignored == ("keep_alive", "options") and embed(input="a", truncate=True).ignored == ("truncate",)
    response = checked_closely(EmbedResponse, request.response(RESPONSE))
    assert response.embeddings == [[1.0, 0.5], [0.0, 2.0]] and response.model == "m:latest"
    assert response.prompt_eval_count == 3 and response.load_duration == 0


def test_one_prompt_is_not_normalized() -> None:
    request = embeddings(prompt="a")
    assert request.body == {"model": "m", "input": "a", "normalize": False} and request.names.own("input") == "prompt"
    assert checked_closely(EmbeddingsResponse, request.response(RESPONSE)).embedding == [1.0, 0.5]


@pytest.mark.parametrize("name", ["", None])
def test_without_a_model_it_is_the_one_that_answers(name: str | None) -> None:
    request = embed(input="a", model=name)
    assert request.body["model"] == "" and request.response({**RESPONSE, "model": "m"})["model"] == "m"
    assert embed(input="", model=name).loaded("m") == {"model": "m", "embeddings": []}


def test_no_text_has_no_embeddings() -> None:
    for request in (embed(input=""), embed(input=[])):
        assert request.load_reason == "load" and request.loaded("m") == {"model": "m:latest", "embeddings": []}
    assert embeddings().load_reason == embeddings(prompt="").load_reason == "load"
    assert embeddings().loaded("m") == {"embedding": []}
    assert embed(input={}).load_reason == "" == embed(input=0).load_reason  # the inner route rejects them


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": "a", "truncate": 1}, "truncate"),
        ({"input": "", "dimensions": 0}, "dimensions"),
        ({"input": ["a", 7]}, r"input\[1\]"),
    ],
)
def test_an_error_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{param} "):
        embed(**fields)
    with pytest.raises(InvalidRequest, match=r"^prompt must be a string"):
        embeddings(prompt=7)


def test_embeddings_come_whole() -> None:
    with pytest.raises(AssertionError):
        embed(input="a").stream()
