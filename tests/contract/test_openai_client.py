"""The openai client drives every route and option of a real server over the demo model; its types are held strictly."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.pagination import SyncPage
from openai.types import Completion, Model, completion_create_params
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.shared import ErrorObject
from pydantic import BaseModel

from chairlift.protocol.request_fields import CHAT, COMPLETION, Effect
from support_router_process import direct_or_routed
from support_server import Server, real_server

MODEL = "chairlift:demo"
IDS = frozenset({"token_ids", "position", "prompt_token_ids"})
"""Fields of ours that OpenAI's types do not have, where return_token_ids asks for them."""

STOP_REASON, CARD = (
    frozenset({"stop_reason"}), frozenset({"max_model_len", "max_input_tokens", "max_tokens", "details"})
)  # fmt: skip
"""And those of a choice with stop strings, and of a model."""

ASK: Any = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def replica() -> Iterator[Server]:
    with real_server("--dtype", "float32", "--num-blocks", "1024") as running:
        yield running


@pytest.fixture(scope="module", params=["direct", "router"])
def server(request: pytest.FixtureRequest, replica: Server) -> Iterator[Server]:
    with direct_or_routed(request.param, replica) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)


def extras(result: Any) -> set[str]:
    """Return the names of all fields that the client's types do not know."""
    if isinstance(result, BaseModel):
        inner = set().union(*(extras(value) for value in vars(result).values()))
        return inner | set(result.model_extra or {})
    if isinstance(result, list):
        return set().union(*map(extras, result))
    return set()


def check_response(kind: type[BaseModel], result: BaseModel, ours: frozenset[str] = frozenset()) -> None:
    """Check an answer against its type, strictly: all that it has is there as its type says, or one of `ours`.

    In two places OpenAI's own server says null where its type has none: the reason of a completion's chunk before the
    last, and the scores of an echoed prompt's first token.
    """
    completion: Any = result.to_dict()
    for choice in completion["choices"] if kind is Completion else ():
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        for name, instead in (("token_logprobs", 0.0), ("top_logprobs", {})):
            values = (choice["logprobs"] or {}).get(name, [])
            if values:
                choice["logprobs"][name] = [instead if value is None else value for value in values]
    kind.model_validate_json(json.dumps(completion), strict=True)
    assert extras(result) <= ours


def ids_of(options: dict[str, Any]) -> frozenset[str]:
    """Return the fields of ours that a request asks for."""
    fields = IDS if options.get("extra_body", {}).get("return_token_ids") else frozenset[str]()
    return fields | STOP_REASON if "stop" in options else fields


@pytest.mark.share(1)
def test_a_chat(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(model=MODEL, messages=ASK, temperature=0)
    check_response(ChatCompletion, completion)
    assert "Paris" in (completion.choices[0].message.content or "") and completion.choices[0].finish_reason == "stop"
    assert (
        completion.usage is not None
        and completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    )


def test_a_streamed_chat_says_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=ASK, temperature=0)
    chunks = list(client.chat.completions.create(
        model=MODEL, messages=ASK, temperature=0, stream=True, stream_options={"include_usage": True}
    ))  # fmt: skip
    for chunk in chunks:
        check_response(ChatCompletionChunk, chunk)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == "stop" and not any(reasons[:-1])  # on a busy machine one chunk may hold every token


def test_the_clients_own_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=ASK, temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds and "Paris" in (final.choices[0].message.content or "")


OPTIONS: dict[str, dict[str, Any]] = {
    "n": {"n": 3, "temperature": 1.0, "seed": 5},
    "length": {"max_tokens": 3},
    "newer length": {"max_completion_tokens": 3, "max_tokens": 9},
    "stop": {"stop": ["ris", "zzz"]},
    "penalties": {"presence_penalty": 1.0, "frequency_penalty": -0.5},
    "bias": {"logit_bias": {"100": -100, "101": 5}},
    "top_p": {"top_p": 0.5, "temperature": 0.7, "seed": 3},
    "user": {"user": "me"},
    "extra": {"extra_body": {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 2, "ignore_eos": True,
                             "stop_token_ids": [5], "priority": 3, "timeout": 30, "cache_salt": "s"}, "max_tokens": 12},
    "scores": {"logprobs": True, "top_logprobs": 3},
    "ids": {"extra_body": {"return_token_ids": True}},
}  # fmt: skip


@pytest.mark.share(2)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_of_a_chat_whole_and_streamed(client: openai.OpenAI, options: dict[str, Any]) -> None:
    asked = {"model": MODEL, "messages": ASK, "temperature": 0, **options}
    whole = client.chat.completions.create(**asked)
    check_response(ChatCompletion, whole, ids_of(options))
    texts: dict[int, str] = {}
    for chunk in client.chat.completions.create(**asked, stream=True):
        check_response(ChatCompletionChunk, chunk, ids_of(options))
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert len(whole.choices) == options.get("n", 1)


@pytest.mark.share(1)
def test_what_the_options_do(client: openai.OpenAI) -> None:
    def said(**options: Any) -> Any:
        asked: Any = {"model": MODEL, "messages": ASK, "temperature": 0, **options}
        return client.chat.completions.create(**asked).choices[0]

    assert said(max_tokens=3).finish_reason == "length" and len(said(max_tokens=3).message.content) < 15
    stopped = said(stop=["ris"])
    assert "Pa" in stopped.message.content and "ris" not in stopped.message.content and stopped.finish_reason == "stop"
    assert stopped.stop_reason == "ris" and not hasattr(said(), "stop_reason")
    drawn = [said(temperature=2, seed=seed, max_tokens=20).message.content for seed in [*range(10), *range(10)]]
    assert drawn[:10] == drawn[10:] and len(set(drawn)) > 1
    scored = said(logprobs=True, top_logprobs=2).logprobs.content
    assert "".join(bytes(entry.bytes).decode() for entry in scored).startswith(said().message.content)
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in scored)


@pytest.mark.share(1)
def test_json_of_a_schema(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "n": {"type": "integer"}},
              "required": ["city", "n"], "additionalProperties": False}  # fmt: skip
    form: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}
    completion = client.chat.completions.create(model=MODEL, messages=ASK, temperature=0, response_format=form)
    result = json.loads(completion.choices[0].message.content or "")
    assert set(result) == {"city", "n"} and isinstance(result["n"], int)
    completion = client.chat.completions.create(
        model=MODEL, messages=ASK, temperature=0, response_format={"type": "json_object"}, max_tokens=60
    )
    assert (completion.choices[0].message.content or "").lstrip().startswith("{")
    completion = client.chat.completions.create(
        model=MODEL, messages=ASK, temperature=0, extra_body={"choice": ["yes", "no"]}
    )
    assert completion.choices[0].message.content in ("yes", "no")
    completion = client.chat.completions.create(
        model=MODEL, messages=ASK, temperature=0, extra_body={"regex": "[0-9]{3}"}
    )
    assert (completion.choices[0].message.content or "").isdigit()


def test_a_schema_as_a_class(client: openai.OpenAI) -> None:
    class City(BaseModel):
        is_capital: bool
        is_large: bool

    completion = client.chat.completions.parse(model=MODEL, messages=ASK, temperature=0, response_format=City)
    assert isinstance(completion.choices[0].message.parsed, City)


@pytest.mark.share(1)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [
    "auto", "required", {"type": "function", "function": {"name": "get_weather"}},
], ids=["auto", "required", "named"])  # fmt: skip
def test_tools_are_called(client: openai.OpenAI, choice: Any, stream: bool) -> None:
    messages: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
    asked: Any = {"model": MODEL, "messages": messages, "tools": [WEATHER], "tool_choice": choice, "temperature": 0,
                  "parallel_tool_calls": False, "max_tokens": 200}  # fmt: skip
    if stream:
        for chunk in client.chat.completions.create(**asked, stream=True):
            check_response(ChatCompletionChunk, chunk)
        with client.chat.completions.stream(**asked) as events:
            completion = events.get_final_completion()
    else:
        completion = client.chat.completions.create(**asked)
        check_response(ChatCompletion, completion)
    [call] = completion.choices[0].message.tool_calls or []
    assert call.type == "function" and call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) >= {"city"} and completion.choices[0].finish_reason == "tool_calls"
    again: Any = [*messages, {"role": "assistant", "tool_calls": [call.to_dict()]},
                  {"role": "tool", "tool_call_id": call.id, "content": '{"weather": "sunny"}'}]  # fmt: skip
    reply = client.chat.completions.create(model=MODEL, messages=again, tools=[WEATHER], temperature=0)
    assert reply.choices[0].message.content


def test_no_tool_is_called_where_none_may_be(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
    completion = client.chat.completions.create(
        model=MODEL, messages=messages, tools=[WEATHER], tool_choice="none", temperature=0, max_tokens=50
    )
    assert not completion.choices[0].message.tool_calls


COMPLETIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "n": {"n": 2, "temperature": 0.8, "seed": 1},
    "echo": {"echo": True},
    "scores": {"logprobs": 2},
    "echoed scores": {"logprobs": 2, "echo": True},
    "prompts": {"prompt": ["Once upon", "The lift"]},
    "ids": {"prompt": [5, 6, 7]},
    "lists of ids": {"prompt": [[5, 6], [7]], "extra_body": {"return_token_ids": True}},
    "stop": {"stop": "."},
}


@pytest.mark.share(3)
@pytest.mark.parametrize("options", COMPLETIONS.values(), ids=COMPLETIONS)
def test_completions_whole_and_streamed(client: openai.OpenAI, options: dict[str, Any]) -> None:
    asked = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, **options}
    whole = client.completions.create(**asked)
    check_response(Completion, whole, ids_of(options))
    texts: dict[int, str] = {}
    for chunk in client.completions.create(**asked, stream=True):
        check_response(Completion, chunk, ids_of(options))
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == {choice.index: choice.text for choice in whole.choices}


def test_the_last_chunk_of_a_completion_counts(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "prompt": ["Once upon", "The lift"], "max_tokens": 8, "temperature": 0, "n": 2}
    whole = client.completions.create(**asked)
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks:
        check_response(Completion, chunk)
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 32


def test_the_best_of_some(client: openai.OpenAI) -> None:
    completion = client.completions.create(
        model=MODEL, prompt="Once", best_of=4, n=2, max_tokens=5, seed=1, temperature=1.0, logprobs=0
    )
    check_response(Completion, completion)
    assert len(completion.choices) == 2


def test_models(client: openai.OpenAI) -> None:
    page = client.models.list()
    check_response(SyncPage[Model], page, CARD)
    [model] = page.data
    assert model.id == MODEL and client.models.retrieve(MODEL) == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("else")


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(model=MODEL, messages=ASK, temperature=3)
    assert refusal.value.param == "temperature" and refusal.value.code == "invalid_request"
    assert refusal.value.request_id
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="else", messages=ASK)
    assert missing.value.code == "model_not_found"
    long: Any = [{"role": "user", "content": "word " * 5000}]
    with pytest.raises(openai.BadRequestError) as too_long:
        client.chat.completions.create(model=MODEL, messages=long)
    assert too_long.value.code == "context_length_exceeded"


@pytest.mark.parametrize(("method", "path", "status"), [
    ("post", "/nowhere", 404), ("get", "/chat/completions", 405), ("get", "/models/else", 404),
    ("post", "/chat/completions", 400), ("post", "/completions", 400),
])  # fmt: skip
def test_the_body_of_an_error_is_an_error_and_nothing_else(
    client: openai.OpenAI, method: str, path: str, status: int
) -> None:
    with pytest.raises(openai.APIStatusError) as refusal:
        getattr(client, method)(path, cast_to=object)
    assert refusal.value.status_code == status
    completion = refusal.value.response.json()
    assert set(completion) == {"error"}
    assert extras(ErrorObject.model_validate(completion["error"], strict=True)) == set()


def test_every_documented_field_is_declared() -> None:
    """What a new client may send is used, named as ignored, or refused with a reason; none is unknown."""
    for documented, table in (
        (chat_create_params.CompletionCreateParamsBase, CHAT),
        (completion_create_params.CompletionCreateParamsBase, COMPLETION),
    ):
        names = documented.__required_keys__ | documented.__optional_keys__ | {"stream"}
        assert names - table.keys() == set()


EVERYTHING: dict[str, Any] = {
    "messages": [{"role": "developer", "content": "Be brief.", "name": "me"}, {"role": "user", "content": "Hello."}],
    "audio": {"format": "wav", "voice": "alloy"}, "frequency_penalty": -2, "logit_bias": {"100": 0}, "logprobs": True,
    "max_completion_tokens": 5, "max_tokens": 9, "metadata": {"a": "b"}, "modalities": ["text"],
    "moderation": {"model": "m", "policy": {"input": {"mode": "score"}, "output": {"mode": "score"}}}, "n": 2,
    "parallel_tool_calls": True, "prediction": {"content": "x", "type": "content"}, "presence_penalty": 2,
    "prompt_cache_key": "k", "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
    "prompt_cache_retention": "in_memory", "reasoning_effort": "none", "response_format": {"type": "text"},
    "safety_identifier": "s", "seed": -(2**53) + 1, "service_tier": "auto", "stop": "\n", "store": True,
    "temperature": 1, "tool_choice": "none", "tools": [WEATHER], "top_logprobs": 2, "top_p": 1, "user": "u",
    "verbosity": "low", "web_search_options": {"search_context_size": "low"},
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_all_documented_fields_at_once(client: openai.OpenAI, stream: bool) -> None:
    refused = {name for name, field in CHAT.items() if field.effect is Effect.REFUSED}
    kind = chat_create_params.CompletionCreateParamsBase
    asked = {**EVERYTHING, "model": MODEL, "stream_options": {"include_usage": True, "include_obfuscation": True}}
    assert (kind.__required_keys__ | kind.__optional_keys__) - refused == asked.keys()
    if not stream:
        del asked["stream_options"]
    raw = client.chat.completions.with_raw_response.create(**asked, stream=stream)
    ignored = {name for name in asked if CHAT[name].effect is Effect.IGNORED}
    ignored |= {"reasoning_effort"}  # the embedded model's template reads no variable for it
    ignored |= {"stream_options.include_obfuscation"} if stream else set()
    assert set(raw.headers["x-ignored-parameters"].split(", ")) == ignored
    if stream:
        for chunk in raw.parse():
            check_response(ChatCompletionChunk, chunk)
    else:
        check_response(ChatCompletion, raw.parse())


@pytest.mark.share(1)
def test_all_documented_fields_of_a_completion_at_once(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL, "prompt": "This is a test.", "best_of": 2, "echo": True, "frequency_penalty": -2,
        "logit_bias": {"100": 0}, "logprobs": 0, "max_tokens": 16, "n": 1, "presence_penalty": -2, "seed": 0,
        "stop": "\n", "temperature": 1, "top_p": 1, "user": "user-1234",
    }  # fmt: skip
    kind = completion_create_params.CompletionCreateParamsBase
    refused = {name for name, field in COMPLETION.items() if field.effect is Effect.REFUSED}
    names = (kind.__required_keys__ | kind.__optional_keys__) - refused
    assert names - asked.keys() == {"stream_options"}
    check_response(Completion, client.completions.create(**asked))
    del asked["best_of"]
    asked |= {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": True}}
    for chunk in client.completions.create(**asked):
        check_response(Completion, chunk)


def test_fields_without_effect_are_named(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=ASK, store=True, metadata={"a": "b"}, service_tier="auto", max_tokens=2
    )
    assert set(raw.headers["x-ignored-parameters"].split(", ")) == {"metadata", "service_tier", "store"}


@pytest.mark.share(1)
def test_a_stream_goes_on_elsewhere(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": ASK, "temperature": 1.0, "seed": 9, "max_tokens": 24}
    whole = client.chat.completions.create(**asked, extra_body={"return_token_ids": True}).choices[0]
    ids = whole.model_extra["token_ids"]  # type: ignore[index]
    for cut in (0, 1, len(ids) // 2, len(ids) - 1):
        rest = client.chat.completions.create(**asked, extra_body={"resume": [ids[:cut]], "return_token_ids": True})
        assert rest.choices[0].model_extra["token_ids"] == ids  # type: ignore[index]


@pytest.mark.full
def test_logprobs_of_a_response(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model=MODEL, input="Hi", max_output_tokens=8, temperature=0, top_logprobs=2,
        include=["message.output_text.logprobs"],
    )  # fmt: skip
    item = response.output[0]
    assert item.type == "message" and item.content[0].type == "output_text"
    logprobs = item.content[0].logprobs
    assert logprobs is not None and "".join(token.token for token in logprobs) == response.output_text
    assert all(len(token.top_logprobs) == 2 and token.top_logprobs[0].token == token.token for token in logprobs)
