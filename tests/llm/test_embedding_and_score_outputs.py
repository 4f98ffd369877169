"""Embeddings and scores of LLM and AsyncLLM on a fake model: order, options, rejections and failures."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from chairlift import LLM, AsyncLLM
from chairlift.core.engine_output import Usage
from chairlift.core.errors import ContextLengthExceeded, InvalidRequest, NonFiniteLogits
from chairlift.engine.runner.fake_model import HIDDEN_SIZE, expected_embedding
from chairlift.llm.embedding_and_score_outputs import EmbeddingOptions, check_pairs, normalized, score, score_pairs
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.llm.outputs import RequestOutput
from chairlift.llm.text_service import TextService
from support_async_llm import run as run_async
from support_services import FAKE, fake_service

TEXTS = ["a", "hello", "a longer text"]


@pytest.fixture
def service() -> Iterator[TextService]:
    service = fake_service()
    yield service
    assert service.client.check_integrity() == []
    service.client.close()


@pytest.fixture
def llm(service: TextService) -> LLM:
    return LLM.from_service(service)


def raw(text: str, pooling: str = "last") -> Any:
    return pytest.approx(expected_embedding(list(text.encode()), pooling, FAKE), abs=1e-6)


def result_of(states: list[float], *, tokens: int = 3, cached: int = 0) -> RequestOutput:
    embedding = np.array(states, np.float32).tobytes()
    return RequestOutput("id", None, [1] * tokens, [], Usage(tokens, 0, cached), embedding=embedding)


def test_embeddings_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    for pooling in ("last", "mean"):
        outputs = llm.embed(TEXTS, pooling=pooling, normalize=False, use_tqdm=False)
        assert [output.prompt for output in outputs] == TEXTS
        assert [output.embedding for output in outputs] == [raw(text, pooling) for text in TEXTS]
        assert [output.usage.prompt_tokens for output in outputs] == [len(text) for text in TEXTS]
        assert all(output.error is None for output in outputs)


def test_one_prompt_may_be_text_or_ids(llm: LLM) -> None:
    ids = list(b"hello")
    for prompt in ("hello", ids, {"prompt_token_ids": ids}, [ids]):
        (output,) = llm.embed(prompt, normalize=False, use_tqdm=False)
        assert output.embedding == raw("hello") and output.prompt_token_ids == ids


def test_the_models_own_pooling_is_the_default() -> None:
    service = fake_service(defaults=ModelDefaults(pooling="mean"))
    (output,) = LLM.from_service(service).embed("hello", normalize=False, use_tqdm=False)
    assert output.embedding == raw("hello", "mean")
    service.client.close()


def test_a_pooling_of_the_folder_that_is_not_supported_is_named() -> None:
    service = fake_service(defaults=ModelDefaults(pooling="cls"))
    llm = LLM.from_service(service)
    with pytest.raises(InvalidRequest, match="'cls'"):
        llm.embed("hello", use_tqdm=False)
    assert llm.embed("hello", pooling="last", normalize=False, use_tqdm=False)[0].embedding == raw("hello")
    service.client.close()


def test_dimensions_are_cut_before_the_length_becomes_one(llm: LLM) -> None:
    (whole,) = llm.embed("hello", use_tqdm=False)
    (short,) = llm.embed("hello", dimensions=3, use_tqdm=False)
    assert len(whole.embedding) == HIDDEN_SIZE and len(short.embedding) == 3
    for embedding in (whole.embedding, short.embedding):
        assert np.linalg.norm(embedding) == pytest.approx(1, abs=1e-6)
    assert short.embedding == pytest.approx(normalized(np.array(whole.embedding[:3], np.float32)).tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dimensions": 0}, "dimensions must be between 1 and 8, got 0"),
        ({"dimensions": 9}, "dimensions must be between 1 and 8, got 9"),
        ({"dimensions": 1.5}, "dimensions"),
        ({"normalize": 1}, "normalize"),
        ({"pooling": "max"}, "pooling must be last or mean, got 'max'"),
        ({"timeout": -1}, "timeout"),
    ],
)
def test_invalid_options_are_named_before_anything_is_queued(llm: LLM, options: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        llm.embed(TEXTS, use_tqdm=False, **options)


def test_a_prompt_may_fill_the_context_but_not_exceed_it(llm: LLM) -> None:
    assert llm.embed([[1] * FAKE.max_model_len], use_tqdm=False)[0].error is None
    with pytest.raises(ContextLengthExceeded):
        llm.embed([[1] * (FAKE.max_model_len + 1)], use_tqdm=False)


def test_a_prompt_that_fails_has_its_error_and_the_others_their_embeddings() -> None:
    service = fake_service(replace(FAKE, nan=ord("!")))
    outputs = LLM.from_service(service).embed(["fine", "bad!", "good"], normalize=False, use_tqdm=False)
    assert [type(output.error) for output in outputs] == [type(None), NonFiniteLogits, type(None)]
    assert outputs[1].embedding == [] and outputs[2].embedding == raw("good")
    service.client.close()


def test_score_is_the_cosine_of_the_embeddings(llm: LLM) -> None:
    vectors = [np.array(output.embedding) for output in llm.embed(TEXTS, use_tqdm=False)]
    scores = llm.score("a", TEXTS, use_tqdm=False)
    assert [output.score for output in scores] == pytest.approx([vectors[0] @ vector for vector in vectors], abs=1e-5)
    assert scores[0].score == pytest.approx(1, abs=1e-6)
    assert scores[1].usage.prompt_tokens == 1 + 5
    assert [output.score for output in llm.score(TEXTS, TEXTS, use_tqdm=False)] == pytest.approx([1, 1, 1], abs=1e-6)


@pytest.mark.parametrize(("num_first", "num_second"), [(2, 3), (0, 1), (3, 1)])
def test_numbers_of_texts_that_do_not_fit_are_named(num_first: int, num_second: int) -> None:
    with pytest.raises(InvalidRequest, match=f"got {num_first} and {num_second} texts"):
        check_pairs(num_first, num_second)


def test_opposite_and_zero_vectors() -> None:
    one, opposite, zero = result_of([1, 2], cached=2), result_of([-2, -4]), result_of([0, 0])
    assert score(one, opposite).score == pytest.approx(-1)
    assert score(one, opposite).usage == Usage(6, 0, 2)
    assert score(one, zero).score == 0
    assert [each.score for each in score_pairs([one], [one, opposite])] == pytest.approx([1, -1])


def test_a_failed_text_has_no_score() -> None:
    failed = result_of([])
    failed.error = NonFiniteLogits("no numbers")
    assert score(result_of([1.0]), failed).error is failed.error


def test_a_length_of_one_needs_no_float32_square() -> None:
    options = EmbeddingOptions()
    assert options.finish(np.array([3e30, 4e30], np.float32).tobytes()).tolist() == pytest.approx([0.6, 0.8])


def test_coroutines_get_the_same_embeddings_for_more_texts_than_the_queue_has_room() -> None:
    texts = [f"text {number}" for number in range(30)]

    async def scenario(llm: AsyncLLM) -> None:
        outputs = await llm.embed(texts, normalize=False)
        assert [output.embedding for output in outputs] == [raw(text) for text in texts]
        scores = await llm.score(texts[0], texts)
        assert scores[0].score == pytest.approx(1, abs=1e-6) and len(scores) == 30
        with pytest.raises(InvalidRequest, match="dimensions"):
            await llm.embed("a", dimensions=99)

    run_async(fake_service(max_queue_size=4), scenario)


@pytest.mark.parametrize("kind", ["script", "coroutine"])
def test_the_error_of_one_prompt_among_several_says_which_and_of_which_list(service: TextService, kind: str) -> None:
    def message_of(method: str, *arguments: Any, **options: Any) -> str:
        try:
            if kind == "script":
                getattr(LLM.from_service(service), method)(*arguments, use_tqdm=False, **options)
            else:
                asyncio.run(getattr(AsyncLLM.from_service(service), method)(*arguments, **options))
        except InvalidRequest as error:
            return error.message
        return ""

    long = "x" * (FAKE.max_model_len + 1)
    assert message_of("embed", ["a", "b", long]).startswith("prompts[2]: the text has")
    assert message_of("embed", ["a", [FAKE.vocab_size]]).startswith("prompts[1]: prompt: token id")
    assert message_of("embed", ["a", None]).startswith("prompts[1]: ")
    assert message_of("embed", [long]).startswith("the text has")
    assert message_of("score", "a", ["b", "", "c"]).startswith("other[1]: prompt has 0 tokens")
    assert message_of("score", ["a", long], ["b", "c"]).startswith("text[1]: the text has")
    assert message_of("score", long, ["b", "c"]).startswith("the text has")
    assert message_of("embed", ["a", "b"], timeout=0).startswith("timeout")
