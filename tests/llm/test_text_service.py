"""TextService: prompts become validated, resolved requests with unique ids."""

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from chairlift import LLM, AsyncLLM
from chairlift.core.errors import ContextLengthExceeded, InvalidRequest, TokenOutOfRange
from chairlift.core.sampling_params import MODEL_DEFAULTS, SamplingParams
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.llm.text_service import TextService, plain
from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.text.chat_template import ChatTemplate
from chairlift.text.tokenizer import ChatPrompt
from support_services import FAKE, AsciiTokenizer, fake_service, is_idle


@pytest.fixture
def service() -> Iterator[TextService]:
    defaults = ModelDefaults(eos_token_ids=(7,), sampling={"temperature": 0.5, "top_k": 9}, max_tokens=20)
    service = fake_service(defaults=defaults, seeds=random.Random(11))
    yield service
    service.client.close()


def test_a_request_is_resolved_with_the_models_defaults(service: TextService) -> None:
    request = service.prepare_completion("ab", SamplingParams(**{**MODEL_DEFAULTS, "top_k": 2})).request
    params = request.params
    assert request.prompt_token_ids == (97, 98) and request.eos_token_ids == (7,)
    assert (params.temperature, params.top_k, params.top_p, params.max_tokens) == (0.5, 2, 1.0, 20)
    assert (request.priority, request.tenant, request.timeout) == (0, "", None)


def test_what_is_messages_for_arrives_in_the_request(service: TextService) -> None:
    request = service.prepare_completion("ab", None, request_id="mine", priority=-3, tenant="t", timeout=2.5).request
    assert (request.request_id, request.priority, request.tenant, request.timeout) == ("mine", -3, "t", 2.5)
    chat = service.prepare_chat([{"role": "user", "content": "x"}], None, tenant="t", timeout=1.0)
    assert (chat.request.tenant, chat.request.timeout, chat.prompt) == ("t", 1.0, "user=x;a=")


def test_tools_reach_the_template_through_every_api_or_are_rejected(service: TextService) -> None:
    assert service.tokenizer is not None
    template = ChatTemplate({"default": "{{ tools[0].function.name }}:{{ messages[0].content }}"}, service.tokenizer)
    with_tools = replace(service, chat_template=template)
    messages, tools = [{"role": "user", "content": "x"}], [{"function": {"name": "f"}}]
    params = SamplingParams(max_tokens=1)

    async def last_request_id() -> str:
        return [event async for event in AsyncLLM.from_service(with_tools).chat(messages, params, tools=tools)][
            -1
        ].request_id

    assert with_tools.prepare_chat(messages, None, tools=tools).prompt == "f:x"
    results = LLM.from_service(with_tools).chat([messages, messages], params, tools=tools, use_tqdm=False)
    assert [result.prompt for result in results] == ["f:x"] * 2
    assert asyncio.run(last_request_id())
    with pytest.raises(InvalidRequest, match=r"tools\[0\] must be an object"):
        with_tools.prepare_chat(messages, None, tools=["f"])  # type: ignore[list-item]


def test_an_answer_that_begins_already_stands_at_the_end_of_the_prompt(service: TextService) -> None:
    messages = [{"role": "user", "content": "x"}]
    with_prefill = service.prepare_chat(messages, None, prefill='{"name": ')
    assert with_prefill.prompt == 'user=x;a={"name": '
    assert with_prefill.request.prompt_token_ids == tuple(b'user=x;a={"name": ')
    assert service.prepare_chat(messages, None).prompt == "user=x;a="


def test_special_tokens_of_a_prefill_are_such_and_those_that_a_user_spells_are_text() -> None:
    service = fake_service(replace(FAKE, vocab_size=300))
    messages = [{"role": "user", "content": "<|eos|>"}]
    ids = service.prepare_chat(messages, None, prefill="<|eos|>b").request.prompt_token_ids
    assert ids == (*b"user=<|eos|>;a=", 257, *b"b")
    service.client.close()


def test_a_prefill_is_held_against_the_model_like_all_of_the_prompt(service: TextService) -> None:
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(InvalidRequest):
        service.prepare_chat(messages, None, prefill="half \ud800 of a pair")
    with pytest.raises(TokenOutOfRange):
        service.prepare_chat(messages, None, prefill="<|eos|>")
    with pytest.raises(InvalidRequest, match="512"):
        service.prepare_chat(messages, None, prefill="x" * 512)


def test_a_salt_arrives_in_the_request_and_without_one_it_is_empty(service: TextService) -> None:
    messages = [{"role": "user", "content": "x"}]
    assert service.prepare_completion("ab", None, cache_salt="s").request.cache_salt == "s"
    assert service.prepare_chat(messages, None, cache_salt="s").request.cache_salt == "s"
    assert (
        service.prepare_completion("ab", None).request.cache_salt
        == service.prepare_chat(messages, None).request.cache_salt
        == ""
    )


def test_only_requests_of_one_salt_and_tenant_share_what_was_computed(service: TextService) -> None:
    async def cached(salt: str, tenant: str = "") -> int:
        processor = service.prepare_completion("x" * 100, SamplingParams(max_tokens=1), cache_salt=salt, tenant=tenant)
        batches = [batch async for batch in AsyncLLM.from_service(service).run([processor])]
        usage = batches[-1][-1][1].usage
        assert usage is not None
        return usage.cached_tokens

    async def cached_counts() -> list[int]:
        salts = [("", ""), ("s", ""), ("t", ""), ("s", ""), ("", ""), ("", "s"), ("t", "s"), ("t", "s")]
        return [await cached(*each) for each in salts]

    assert asyncio.run(cached_counts()) == [0, 0, 0, 96, 96, 0, 0, 96]
    assert is_idle(service)


def test_a_default_length_shrinks_to_what_fits(service: TextService) -> None:
    assert service.prepare_completion("x" * 500, None).request.params.max_tokens == 12


def test_ignoring_the_end_of_sequence_takes_it_out_of_the_request(service: TextService) -> None:
    assert service.prepare_completion("x", SamplingParams(ignore_eos=True)).request.eos_token_ids == ()


def test_missing_seeds_come_from_the_service(service: TextService) -> None:
    seeds = [service.prepare_completion("x", None).request.params.seed for _ in range(3)]
    source = random.Random(11)
    assert seeds == [source.getrandbits(63) for _ in range(3)]
    assert service.prepare_completion("x", SamplingParams(seed=-5)).request.params.seed == -5


def test_request_ids_are_never_the_same(service: TextService) -> None:
    other = fake_service()
    names = [each.prepare_completion("x", None).request.request_id for each in (service, other) for _ in range(50)]
    assert len(set(names)) == 100
    other.client.close()


def test_plain_turns_arrays_into_lists_and_nothing_else() -> None:
    ids: Any = [1, 2]
    assert plain(np.array([[1], [2]])) == [[1], [2]] and type(plain(np.int64(3))) is int
    assert plain(ids) is ids and plain("text") == "text"


def test_ids_may_come_from_anything_that_can_be_walked_once(service: TextService) -> None:
    iterator: Any = iter([1, 2, 3])
    assert service.prepare_completion(iterator, None).request.prompt_token_ids == (1, 2, 3)
    not_iterable: Any = object()
    with pytest.raises(InvalidRequest, match="object"):
        service.prepare_completion(not_iterable, None)


@pytest.mark.parametrize("name", ["request_id", "tenant", "cache_salt"])
@pytest.mark.parametrize("value", [5, b"x", "half \ud800 of a pair", "x" * 257])
def test_a_name_that_cannot_cross_a_process_border_is_refused(service: TextService, name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=name) as caught:
        service.prepare_completion("x", None, **{name: value})
    assert caught.value.details["param"] == name


def test_an_empty_request_id_is_not_taken_for_none(service: TextService) -> None:
    with pytest.raises(InvalidRequest, match="request_id must have 1 to 256 characters, got 0"):
        service.prepare_completion("x", None, request_id="")


@pytest.mark.parametrize("resume", [5, "ab", {0: [1]}, [5], ["ab"], [[1], [True]], [[1.5]], [[object()]]])
def test_what_is_no_output_to_resume_from_is_refused(service: TextService, resume: Any) -> None:
    with pytest.raises(InvalidRequest, match="resume") as caught:
        service.prepare_completion("x", None, resume=resume)
    assert caught.value.details["param"] == "resume"


# -- texts that are much too long --------------------------------------------------------------------------------------


class CountingTokenizer(AsciiTokenizer):
    """Counts the characters that it encodes; `chars` of them are one token."""

    def __init__(self, chars: int = 1) -> None:
        super().__init__()
        self.chars, self.num_chars = chars, 0

    def encode_chat(self, prompt: ChatPrompt) -> list[int]:
        self.num_chars += len(prompt.text)
        return super().encode_chat(ChatPrompt(prompt.text[:: self.chars]))


LIMIT = FAKE.max_model_len


@pytest.mark.parametrize("prepare", [
    lambda service, text: service.prepare_completion(text, None),
    lambda service, text: service.prepare_chat([{"role": "user", "content": text}], None),
])  # fmt: skip
def test_of_a_text_that_is_much_too_long_only_the_beginning_becomes_tokens(prepare: Callable[..., object]) -> None:
    tokenizer = CountingTokenizer()
    service, text = fake_service(tokenizer=tokenizer), "x" * 1_000_000
    message = f"prompt has {8 * LIMIT} tokens or more, the limit is {LIMIT}"
    try:
        with pytest.raises(ContextLengthExceeded, match=message):
            prepare(service, text)
        assert tokenizer.num_chars == 8 * LIMIT
    finally:
        service.client.close()


def test_a_long_text_of_few_tokens_is_taken() -> None:
    service, text = fake_service(tokenizer=CountingTokenizer(chars=100)), "x" * 25 * LIMIT
    try:
        assert len(service.prepare_completion(text, None).request.prompt_token_ids) == 25 * LIMIT / 100 > 100
    finally:
        service.client.close()


def test_a_text_that_is_a_little_too_long_is_counted_exactly() -> None:
    tokenizer = CountingTokenizer()
    service, length = fake_service(tokenizer=tokenizer), 10 * LIMIT
    try:
        with pytest.raises(ContextLengthExceeded, match=f"prompt has {length} tokens, the limit"):
            service.prepare_completion("x" * length, None)
        assert tokenizer.num_chars == length
    finally:
        service.client.close()


def test_a_long_bad_word_is_rejected_by_its_own_name(service: TextService) -> None:
    service.prepare_completion("ab", SamplingParams(bad_words=["x" * 255]))
    with pytest.raises(InvalidRequest, match="bad_words has a word of 257 tokens, the limit is 256") as caught:
        service.prepare_completion("ab", SamplingParams(bad_words=["a", "x" * 256]))
    assert caught.value.details["param"] == "bad_words"


def predicted_ids(service: TextService, prediction: Any) -> tuple[int, ...]:
    return service.prepare_completion("x", None, prediction=prediction).request.predicted_token_ids


def test_a_prediction_is_plain_text_in_tokens_or_token_ids(service: TextService) -> None:
    assert predicted_ids(service, "ab") == predicted_ids(service, [97, 98]) == (97, 98)
    assert predicted_ids(service, None) == predicted_ids(service, "") == ()
    messages = [{"role": "user", "content": "x"}]
    assert service.prepare_chat(messages, None, prediction="ab").request.predicted_token_ids == (97, 98)


def test_special_tokens_in_a_prediction_are_text_and_none_is_added() -> None:
    service = fake_service(tokenizer=ByteTokenizer(), config=replace(FAKE, vocab_size=ByteTokenizer().vocab_size))
    text = "a" + next(iter(ByteTokenizer().special_tokens))
    assert predicted_ids(service, text) == tuple(text.encode())
    service.client.close()


def test_a_long_prediction_is_cut_to_the_context(service: TextService) -> None:
    limit = service.client.limits.max_model_len
    assert predicted_ids(service, "ab" * 10**6) == (97, 98) * (limit // 2)
    assert predicted_ids(service, [5] * (limit + 1)) == (5,) * limit


@pytest.mark.parametrize("prediction", [5, b"x", {"a": 1}, [True], [1.5], ["a"], [128], [-1], "half \ud800 of a pair"])
def test_what_is_no_prediction_is_refused(service: TextService, prediction: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"prediction|surrogate") as caught:
        predicted_ids(service, prediction)
    assert caught.value.details["param"] == "prediction"


def test_a_text_that_cannot_be_encoded_as_plain_text_predicts_nothing(service: TextService) -> None:
    class Unencodable(AsciiTokenizer):
        def encode_chat(self, prompt: ChatPrompt) -> list[int]:
            if prompt.literal:
                raise InvalidRequest("cannot encode as plain text", param="messages")
            return super().encode_chat(prompt)

    assert (
        predicted_ids(replace(service, tokenizer=Unencodable()), "a" + next(iter(Unencodable().special_tokens))) == ()
    )


def test_without_a_tokenizer_a_prediction_must_be_ids() -> None:
    service = fake_service(with_tokenizer=False)
    prepare = service.prepare_completion
    assert prepare([1], None, prediction=[2, 3]).request.predicted_token_ids == (2, 3)
    with pytest.raises(InvalidRequest, match="a prediction must be token ids") as caught:
        prepare([1], None, prediction="ab")
    assert caught.value.details["param"] == "prediction"
    service.client.close()
