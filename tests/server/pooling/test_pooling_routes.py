"""/v1/embeddings, /v1/score and /v1/rerank over a fake engine: responses, limits, metrics and failures."""

import asyncio
import base64
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from chairlift.engine.runner.fake_model import HIDDEN_SIZE, expected_embedding
from chairlift.server.pooling import pooling_routes
from support_server import COMPLETIONS, MODEL, open_server, run
from support_services import FAKE, fake_service

EMBEDDINGS, SCORE, RERANK = "/v1/embeddings", "/v1/score", "/v1/rerank"


def send(*requests: tuple[str, dict[str, Any]], service_options: dict[str, Any] | None = None, **options: Any) -> Any:
    async def scenario() -> list[Any]:
        async with open_server(fake_service(**(service_options or {})), **options) as server:
            posts = [server.http.post(path, json={"model": MODEL} | body) for path, body in requests]
            return await asyncio.gather(*posts)

    return run(scenario())


def unit(text: str, pooling: str = "last") -> np.ndarray:
    vector = np.array(expected_embedding(list(text.encode()), pooling, FAKE))
    return vector / np.linalg.norm(vector)


def test_one_text_several_texts_and_ids() -> None:
    ids = list(b"lift")
    one, several, of_ids, many_ids = send(
        (EMBEDDINGS, {"input": "lift"}), (EMBEDDINGS, {"input": ["lift", "rope"]}), (EMBEDDINGS, {"input": ids}),
        (EMBEDDINGS, {"input": [ids, ids]}),
    )  # fmt: skip
    body = one.json()
    assert body["object"] == "list" and body["model"] == MODEL
    assert body["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    (entry,) = body["data"]
    assert entry["object"] == "embedding" and entry["index"] == 0
    assert entry["embedding"] == pytest.approx(unit("lift"), abs=1e-6)
    assert [each["index"] for each in several.json()["data"]] == [0, 1]
    assert several.json()["data"][1]["embedding"] == pytest.approx(unit("rope"), abs=1e-6)
    assert several.json()["usage"]["total_tokens"] == 8
    assert of_ids.json()["data"] == body["data"]
    assert [each["embedding"] for each in many_ids.json()["data"]] == [entry["embedding"]] * 2


def test_base64_has_the_same_numbers_as_float32() -> None:
    numbers, encoded = send(
        (EMBEDDINGS, {"input": "lift"}), (EMBEDDINGS, {"input": "lift", "encoding_format": "base64"})
    )
    decoded = np.frombuffer(base64.b64decode(encoded.json()["data"][0]["embedding"]), "<f4")
    assert decoded.tolist() == np.array(numbers.json()["data"][0]["embedding"], np.float32).tolist()


def test_pooling_dimensions_and_length() -> None:
    mean, short, raw = send(
        (EMBEDDINGS, {"input": "lift", "pooling": "mean"}), (EMBEDDINGS, {"input": "lift", "dimensions": 3}),
        (EMBEDDINGS, {"input": "lift", "normalize": False}),
    )  # fmt: skip
    assert mean.json()["data"][0]["embedding"] == pytest.approx(unit("lift", "mean"), abs=1e-6)
    assert len(short.json()["data"][0]["embedding"]) == 3
    expected = expected_embedding(list(b"lift"), "last", FAKE)
    assert raw.json()["data"][0]["embedding"] == pytest.approx(expected, abs=1e-6)


def test_scores_are_cosines() -> None:
    one, pairs = send(
        (SCORE, {"text_1": "lift", "text_2": ["lift", "rope"]}),
        (SCORE, {"text_1": ["lift", "rope"], "text_2": ["rope", "rope"]}),
    )
    assert [each["index"] for each in one.json()["data"]] == [0, 1]
    expected = float(unit("lift") @ unit("rope"))
    assert [each["score"] for each in one.json()["data"]] == pytest.approx([1, expected], abs=1e-5)
    assert [each["score"] for each in pairs.json()["data"]] == pytest.approx([expected, 1], abs=1e-5)
    assert one.json()["usage"] == {"prompt_tokens": 12, "total_tokens": 12}


def test_the_most_similar_document_comes_first() -> None:
    documents = ["rope", {"text": "lift"}, "cabin", "slope"]
    full, top = send(
        (RERANK, {"query": "lift", "documents": documents}),
        (RERANK, {"query": "lift", "documents": documents, "top_n": 2, "return_documents": False}),
    )
    results = full.json()["results"]
    scores = [each["relevance_score"] for each in results]
    assert scores == sorted(scores, reverse=True) and scores[0] == pytest.approx(1, abs=1e-6)
    assert results[0]["index"] == 1 and results[0]["document"] == {"text": "lift"}
    assert sorted(each["index"] for each in results) == [0, 1, 2, 3]
    assert top.json()["results"] == [
        {name: value for name, value in each.items() if name != "document"} for each in results[:2]
    ]


BAD: list[tuple[str, dict[str, Any], str]] = [
    (EMBEDDINGS, {}, "input"),
    (EMBEDDINGS, {"input": ""}, "input"),
    (EMBEDDINGS, {"input": []}, "input"),
    (EMBEDDINGS, {"input": ["a", ""]}, "input"),
    (EMBEDDINGS, {"input": ["a", 1]}, "input"),
    (EMBEDDINGS, {"input": [1, "a"]}, "input"),
    (EMBEDDINGS, {"input": [[]]}, "input"),
    (EMBEDDINGS, {"input": [1.5]}, "input"),
    (EMBEDDINGS, {"input": [True]}, "input"),
    (EMBEDDINGS, {"input": [-1]}, "input"),
    (EMBEDDINGS, {"input": {"text": "a"}}, "input"),
    (EMBEDDINGS, {"input": ["a"] * 2049}, "input"),
    (EMBEDDINGS, {"input": [[1]] * 2049}, "input"),
    (EMBEDDINGS, {"input": [FAKE.vocab_size]}, "input"),
    (EMBEDDINGS, {"input": "a", "n": 2}, "n"),
    (EMBEDDINGS, {"input": "a", "stream": True}, "stream"),
    (SCORE, {"text_1": "a", "text_2": ["b", "x" * 2000]}, "text_2"),
    (RERANK, {"query": "a", "documents": ["x" * 2000]}, "documents"),
    (EMBEDDINGS, {"input": "a", "dimensions": 0}, "dimensions"),
    (EMBEDDINGS, {"input": "a", "dimensions": HIDDEN_SIZE + 1}, "dimensions"),
    (EMBEDDINGS, {"input": "a", "dimensions": "8"}, "dimensions"),
    (EMBEDDINGS, {"input": "a", "encoding_format": "int8"}, "encoding_format"),
    (EMBEDDINGS, {"input": "a", "encoding_format": ["float"]}, "encoding_format"),
    (EMBEDDINGS, {"input": "a", "pooling": "max"}, "pooling"),
    (EMBEDDINGS, {"input": "a", "normalize": "yes"}, "normalize"),
    (EMBEDDINGS, {"input": "a", "priority": -1}, "priority"),
    (EMBEDDINGS, {"input": "a", "timeout": 0}, "timeout"),
    (EMBEDDINGS, {"input": "a", "cache_salt": 5}, "cache_salt"),
    (EMBEDDINGS, {"input": "a", "truncate_prompt_tokens": 4}, "truncate_prompt_tokens"),
    (SCORE, {"text_1": "a"}, "text_2"),
    (SCORE, {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1"),
    (SCORE, {"text_1": [[1]], "text_2": ["c"]}, "text_1"),
    (SCORE, {"text_1": "a", "text_2": [None]}, "text_2"),
    (RERANK, {"documents": ["a"]}, "query"),
    (RERANK, {"query": ["a"], "documents": ["a"]}, "query"),
    (RERANK, {"query": "a", "documents": "a"}, "documents"),
    (RERANK, {"query": "a", "documents": [{"title": "a"}]}, "documents"),
    (RERANK, {"query": "a", "documents": []}, "documents"),
    (RERANK, {"query": "a", "documents": ["a"], "top_n": -1}, "top_n"),
    (RERANK, {"query": "a", "documents": ["a"], "return_documents": 1}, "return_documents"),
]


def test_bad_input_names_its_field_and_the_next_request_is_served() -> None:
    good = (EMBEDDINGS, {"input": "lift"})
    *responses, last = send(*((path, body) for path, body, _ in BAD), good)
    found = [(response.status_code, response.json()["error"]["param"]) for response in responses]
    assert found == [(400, param) for _, _, param in BAD]
    assert last.status_code == 200


def test_a_text_that_is_too_long_names_both_numbers() -> None:
    fits, long = send(
        (EMBEDDINGS, {"input": "x" * FAKE.max_model_len}),
        (EMBEDDINGS, {"input": ["a", "x" * (FAKE.max_model_len + 1)]}),
    )
    assert fits.status_code == 200
    assert long.status_code == 400 and long.json()["error"]["code"] == "context_length_exceeded"
    message = long.json()["error"]["message"]
    limit = FAKE.max_model_len
    assert message.startswith(f"input[1]: the text has {limit + 1} tokens, the limit is {limit} (")


def test_the_error_of_one_text_among_several_says_which_of_which_field() -> None:
    long = "x" * (FAKE.max_model_len + 1)
    bodies: list[tuple[str, dict[str, Any], str, str]] = [
        (EMBEDDINGS, {"input": ["a", "b", long]}, "input", "input[2]: the text has"),
        (EMBEDDINGS, {"input": ["a", ""]}, "input", "input[1]: input must not contain an empty text"),
        (EMBEDDINGS, {"input": [[1], [2], [FAKE.vocab_size]]}, "input", "input[2]: prompt: token id"),
        (EMBEDDINGS, {"input": [[1], []]}, "input", "input[1]: input must be"),
        (EMBEDDINGS, {"input": [long]}, "input", "the text has"),
        (SCORE, {"text_1": "a", "text_2": ["b", long]}, "text_2", "text_2[1]: the text has"),
        (SCORE, {"text_1": [long, "a"], "text_2": ["b", "c"]}, "text_1", "text_1[0]: the text has"),
        (SCORE, {"text_1": long, "text_2": ["b", "c"]}, "text_1", "the text has"),
        (RERANK, {"query": "a", "documents": ["b", long]}, "documents", "documents[1]: the text has"),
        (RERANK, {"query": long, "documents": ["a", "b"]}, "query", "the text has"),
    ]
    for response, (_, _, param, begin) in zip(send(*(each[:2] for each in bodies)), bodies, strict=True):
        error = response.json()["error"]
        assert response.status_code == 400 and error["param"] == param and error["message"].startswith(begin)


def test_fields_without_effect_are_named() -> None:
    (response,) = send((EMBEDDINGS, {"input": "a", "input_type": "query", "colour": 1}))
    assert response.status_code == 200 and response.headers["x-ignored-parameters"] == "input_type, colour"


def test_more_texts_than_the_queue_has_room_for() -> None:
    (response,) = send((EMBEDDINGS, {"input": ["a"] * 5}), service_options={"max_queue_size": 4})
    assert response.status_code == 400 and "4" in response.json()["error"]["message"]


def test_a_text_that_fails_fails_its_own_request_only() -> None:
    service_options = {"config": replace(FAKE, nan=ord("!"))}
    bad, good = send(
        (EMBEDDINGS, {"input": ["fine", "bad!"]}), (EMBEDDINGS, {"input": "good"}), service_options=service_options
    )
    assert bad.status_code == 500 and good.status_code == 200


def test_an_embedding_does_not_wait_for_a_first_token_in_the_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with open_server(fake_service(max_running_requests=2)) as server:
            admission = server.replica.admission
            real, started = admission.on_running, []
            monkeypatch.setattr(admission, "on_running", lambda *numbers: started.append(numbers) or real(*numbers))
            for _ in range(5):
                bodies = [{"model": MODEL, "input": f"text {number}"} for number in range(8)]
                responses = await asyncio.gather(*(server.http.post(EMBEDDINGS, json=body) for body in bodies))
                assert {response.status_code for response in responses} == {200}
            assert admission.waiting_requests == admission.running_requests == 0
            assert len(started) == 40

    run(scenario())


def test_a_large_response_is_refused_before_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling_routes, "MAX_NUMBERS", 2 * HIDDEN_SIZE)
    fits, large, cut = send(
        (EMBEDDINGS, {"input": ["a", "b"]}), (EMBEDDINGS, {"input": ["a", "b", "c"]}),
        (EMBEDDINGS, {"input": ["a", "b", "c"], "dimensions": 2}),
    )  # fmt: skip
    assert (fits.status_code, large.status_code, cut.status_code) == (200, 400, 200)
    assert "24 numbers together, the limit is 16; send fewer texts" in large.json()["error"]["message"]


def test_embeddings_and_generation_share_the_engine_and_are_counted() -> None:
    async def scenario() -> None:
        async with open_server(fake_service()) as server:
            generation = {"model": MODEL, "prompt": "lift", "max_tokens": 4, "seed": 3}
            alone = (await server.http.post(COMPLETIONS, json=generation)).json()["choices"]
            responses = await asyncio.gather(
                server.http.post(COMPLETIONS, json=generation),
                *(server.http.post(EMBEDDINGS, json={"model": MODEL, "input": "rope"}) for _ in range(5)),
            )
            assert responses[0].json()["choices"] == alone
            assert await server.metric(f'model_requests_total{{model="{MODEL}",result="success"}}') == 7
            assert await server.metric('tenant_requests_total{status="200",tenant="none"}') == 7
            assert await server.metric("prompt_tokens_total") == 4 * 7
            assert await server.metric("request_output_tokens_count") == 2  # embeddings have no output tokens
            load = (await server.http.get("/load")).json()
            assert load["running_requests"] == load["waiting_requests"] == 0

    run(scenario())
