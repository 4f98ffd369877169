"""The anthropic client in front of a server whose model gives scripted replies, and behind a router."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import BaseModel

from chairlift.protocol.sse import EventReader
from support_router_process import direct_or_routed
from support_sdk_schemas import checked
from support_server import Server, real_server, scripted_model_server

MODEL = "scripted"
REASONING = "A cat has 4 legs.\n2 times 4 is 8."
WEATHER: Any = {
    "name": "get_weather", "description": "Get the weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}  # fmt: skip
DEEP_CALL = {"type": "tool_use", "id": "t", "name": "f", "input": json.loads('{"a":' * 40 + "1" + "}" * 40)}


class City(BaseModel):
    name: str
    population: int
    is_capital: bool


@pytest.fixture(scope="module")
def replica() -> Iterator[Server]:
    with scripted_model_server() as server:
        yield server


@pytest.fixture(scope="module", params=["direct", "router"])
def url(request: pytest.FixtureRequest, replica: Server) -> Iterator[str]:
    with direct_or_routed(request.param, replica) as server:
        yield server.url


@pytest.fixture
def client(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def ask(text: str, **fields: Any) -> Any:
    return {"model": MODEL, "max_tokens": 300, "messages": [user(text)], **fields}


def stream(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a streamed message without `ping`, each checked against its type."""
    reader, events = EventReader(), []
    with httpx.stream("POST", f"{url}/v1/messages?beta=true", json={**body, "stream": True}, timeout=60) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        for piece in answer.iter_bytes():
            events += reader.push(piece)
    parsed = [json.loads(event.data) for event in events]
    assert [event.event for event in events] == [body["type"] for body in parsed]
    assert parsed.pop(1) == {"type": "ping"}
    for event in parsed:
        checked(RawMessageStreamEvent, event)
    return parsed


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """Return the types of events and of their deltas; equal ones in a row once."""
    names = [event["delta"]["type"] if "index" in event and "delta" in event else event["type"] for event in events]
    return [name for number, name in enumerate(names) if number == 0 or names[number - 1] != name]


def plain(message: Any) -> dict[str, Any]:
    """Return a message without ids, and with the sum of its input tokens, some of which a cache may have had."""
    found: dict[str, Any] = message.model_dump(exclude_none=True, exclude={"id"})
    usage = found["usage"]
    usage["input_tokens"] += usage.pop("cache_read_input_tokens")
    for block in found["content"]:
        block.pop("parsed_output", None)
        block.pop("id", None)
    return found


def test_a_message_has_the_fields_of_its_type(url: str) -> None:
    body = ask("sunny in Paris", system="Be brief.", temperature=0.5, metadata={"user_id": "u"})
    answer = httpx.post(f"{url}/v1/messages", json=body, timeout=60)
    message = checked(Message, answer.json())
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert message.content[0].type == "text" and message.content[0].text == "It is sunny in Paris."
    assert message.stop_reason == "end_turn" and message.stop_sequence is None and message.model == MODEL
    assert message.usage.output_tokens > 0 and message.id.startswith("msg_")


@pytest.mark.share(1)
def test_the_events_of_thinking_and_of_a_call(url: str) -> None:
    events = stream(url, ask("think about the weather in Rome", tools=[WEATHER]))
    assert kinds(events) == [
        "message_start", "content_block_start", "thinking_delta", "signature_delta", "content_block_stop",
        "content_block_start", "input_json_delta", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    arguments = "".join(event["delta"].get("partial_json", "") for event in events if "index" in event
                        and "delta" in event)  # fmt: skip
    assert json.loads(arguments) == {"city": "Rome"}


@pytest.mark.share(1)
@pytest.mark.parametrize(("text", "fields"), [
    ("sunny in Paris", {}),
    ("sunny in Paris", {"max_tokens": 3}),
    ("sunny in Paris", {"stop_sequences": ["never", " in"]}),
    ("think about the weather in Rome", {"tools": [WEATHER]}),
    ("What is the weather in Paris and Rome?", {"tools": [WEATHER]}),
    ("Fill in Rome", {"tools": [WEATHER], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}),
    ("How many legs have two cats?", {"thinking": {"type": "adaptive"}}),
    ("How many legs have two cats?", {"thinking": {"type": "disabled"}}),
    ("Say nothing", {}),
], ids=["text", "max_tokens", "stop_sequences", "call", "calls", "any", "thinking", "disabled", "nothing"])  # fmt: skip
def test_the_stream_helper_puts_the_whole_message_together(
    client: anthropic.Anthropic, text: str, fields: dict[str, Any]
) -> None:
    whole = client.messages.create(**ask(text, **fields))
    with client.messages.stream(**ask(text, **fields)) as events:
        assert plain(events.get_final_message()) == plain(whole)
    stream(str(client.base_url).rstrip("/"), ask(text, **fields))


def test_stop_reasons(client: anthropic.Anthropic) -> None:
    cut = client.messages.create(**ask("sunny in Paris", max_tokens=3))
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)
    stopped = client.messages.create(**ask("sunny in Paris", stop_sequences=["never", " in"]))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " in")
    assert stopped.content[0].type == "text" and stopped.content[0].text == "It is sunny"
    assert client.messages.create(**ask("Say nothing")).content == []


def test_thinking(client: anthropic.Anthropic) -> None:
    ask_legs = ask("How many legs have two cats?")
    thinking, text = client.messages.create(**ask_legs, thinking={"type": "enabled", "budget_tokens": 1024}).content
    assert thinking.type == "thinking" and thinking.thinking == REASONING and thinking.signature
    assert text.type == "text" and text.text == "Eight."
    for hidden in ({"type": "disabled"}, {"type": "adaptive", "display": "omitted"}):
        (text,) = client.messages.create(**ask_legs, thinking=hidden).content
        assert text.type == "text" and text.text == "Eight."


def test_a_tool_loop_with_parallel_calls(client: anthropic.Anthropic) -> None:
    messages: Any = [user("What is the weather in Paris and Rome?")]
    first = client.messages.create(model=MODEL, max_tokens=300, messages=messages, tools=[WEATHER])
    calls = [block for block in first.content if block.type == "tool_use"]
    assert [call.input["city"] for call in calls] == ["Paris", "Rome"] and first.stop_reason == "tool_use"
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "rainy in Rome"} for call in calls]
    results[1] |= {"is_error": True, "content": [{"type": "text", "text": "rainy in Rome"}]}
    messages += [first.to_param(), {"role": "user", "content": results}]
    second = client.messages.create(model=MODEL, max_tokens=300, messages=messages, tools=[WEATHER])
    assert second.content[0].type == "text" and second.content[0].text == "It is rainy in Rome."


def test_thinking_goes_back_with_a_call(client: anthropic.Anthropic) -> None:
    messages: Any = [user("think about the weather in Rome")]
    first = client.messages.create(model=MODEL, max_tokens=300, messages=messages, tools=[WEATHER])
    assert [block.type for block in first.content] == ["thinking", "tool_use"]
    call = first.content[1]
    assert call.type == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rainy in Rome"}
    with_thinking = [*messages, first.to_param(), {"role": "user", "content": [result]}]
    second = client.messages.create(model=MODEL, max_tokens=300, messages=with_thinking, tools=[WEATHER])
    assert second.content[0].type == "text" and second.content[0].text == "It is rainy in Rome."
    bare = [*messages, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    counts = [
        client.messages.count_tokens(model=MODEL, messages=each, tools=[WEATHER]) for each in (with_thinking, bare)
    ]
    assert counts[0].input_tokens > counts[1].input_tokens + len("I need the weather.")


@pytest.mark.share(3)
@pytest.mark.parametrize(("choice", "num_calls"), [
    ({"type": "auto", "disable_parallel_tool_use": True}, 1), ({"type": "none"}, 0), ({"type": "auto"}, 2),
    ({"type": "any", "disable_parallel_tool_use": True}, 1),
    ({"type": "tool", "name": "get_weather"}, 1),
])  # fmt: skip
def test_tool_choice(client: anthropic.Anthropic, choice: Any, num_calls: int) -> None:
    message = client.messages.create(**ask("weather in Paris and Rome", tools=[WEATHER], tool_choice=choice))
    calls = [block for block in message.content if block.type == "tool_use"]
    assert len(calls) == num_calls and all(call.name == "get_weather" for call in calls)
    assert (message.stop_reason == "tool_use") == (num_calls > 0)


def test_an_answer_continues_a_prefill(client: anthropic.Anthropic) -> None:
    prefilled = [user("sunny in Paris"), {"role": "assistant", "content": "Well:"}]
    message = client.messages.create(**ask("", messages=prefilled))
    assert message.content[0].type == "text" and "Well" not in message.content[0].text
    count = client.messages.count_tokens(model=MODEL, messages=prefilled).input_tokens
    assert count == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


@pytest.mark.share(4)
@pytest.mark.parametrize("fields", [
    {}, {"system": "Be brief."}, {"system": [{"type": "text", "text": "Be brief."}]}, {"tools": [WEATHER]},
    {"tools": [WEATHER], "tool_choice": {"type": "any"}}, {"tools": [WEATHER], "tool_choice": {"type": "none"}},
    {"thinking": {"type": "disabled"}},
    {"tools": [WEATHER], "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
])  # fmt: skip
def test_a_count_is_that_of_the_message(client: anthropic.Anthropic, fields: Any) -> None:
    count = client.messages.count_tokens(model=MODEL, messages=[user("Describe Paris")], **fields)
    usage = client.messages.create(**ask("Describe Paris", **fields)).usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_parse(client: anthropic.Anthropic) -> None:
    parsed = client.messages.parse(**ask("Describe Paris"), output_format=City)
    assert parsed.parsed_output == City(name="Paris", population=2_100_000, is_capital=True)


def test_errors_are_the_clients_own(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens must be between 1") as refusal:
        client.messages.create(**ask("Hi", max_tokens=0))
    assert refusal.value.type == "invalid_request_error" and refusal.value.request_id
    assert refusal.value.body["request_id"] == refusal.value.request_id  # type: ignore[index]
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**ask("Hi", model="else"))
    assert missing.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: 20\d+ tokens > \d+ maximum"):
        client.messages.create(**ask("a" * 20_000))
    with pytest.raises(anthropic.BadRequestError, match=r"exceed context limit: \d+ \+ 100000 > \d+, decrease"):
        client.messages.create(**ask("Hi", max_tokens=100_000))


def test_the_models_have_their_limits(client: anthropic.Anthropic) -> None:
    [model] = [each for each in client.models.list() if each.id == MODEL]
    assert model.max_input_tokens and model.max_tokens
    assert client.models.retrieve(MODEL).max_input_tokens == model.max_input_tokens
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.models.retrieve("else")
    assert missing.value.type == "not_found_error" and missing.value.request_id


@pytest.mark.share(3)
@pytest.mark.parametrize(("body", "param"), [
    ({"messages": []}, "messages"),
    ({"messages": [user("Hi"), {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t", "content": "1"}]}]}, "messages[1].content[0].tool_use_id"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://127.0.0.1"}}]}]},
     "messages[0].content[0]"),
    ({"messages": [user("Hi"), {"role": "assistant", "content": [DEEP_CALL]}, user("Hi")]},
     "messages[1].content[0].input"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"temperature": 9}, "temperature"),
    ({"top_k": -7}, "top_k"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"stop_sequences": "END"}, "stop_sequences"),
    ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{**WEATHER, "input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "else"}}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"thinking": {"type": "maybe"}}, "thinking.type"),
    ({"metadata": {"user_id": 7}}, "metadata.user_id"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "banana"}}}}, "output_config.format"),
    ({"stream": "yes"}, "stream"),
])  # fmt: skip
def test_a_bad_field_is_named_as_the_request_has_it(url: str, body: dict[str, Any], param: str) -> None:
    answer = httpx.post(f"{url}/v1/messages", json=ask("Hi", **body), timeout=60)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["type"] == "invalid_request_error", answer.text
    assert error["message"].startswith(param), answer.text


def test_fields_without_effect_are_named(url: str) -> None:
    body = ask("Say nothing", service_tier="auto", unknown=1, thinking={"type": "disabled"})
    answer = httpx.post(f"{url}/v1/messages", json=body, timeout=60)
    assert answer.headers["x-ignored-parameters"] == "service_tier, unknown, thinking"
    count = httpx.post(f"{url}/v1/messages/count_tokens", json=body, timeout=60)
    assert count.headers["x-ignored-parameters"] == "max_tokens, service_tier, unknown, thinking"


@pytest.mark.full
def test_the_demo_model() -> None:
    with real_server("--dtype", "float32", "--num-blocks", "1024") as server:
        client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60)
        body: Any = {"model": "chairlift:demo", "max_tokens": 40, "temperature": 0.0,
                     "messages": [user("What is the capital of France?")]}  # fmt: skip
        whole = checked(Message, httpx.post(f"{server.url}/v1/messages", json=body, timeout=60).json())
        assert whole.content[0].type == "text" and "Paris" in whole.content[0].text
        with client.messages.stream(model="chairlift:demo", max_tokens=40, extra_body={"temperature": 0.0},
                                    messages=body["messages"]) as events:  # fmt: skip
            assert plain(events.get_final_message()) == plain(whole)
        count = client.messages.count_tokens(model="chairlift:demo", messages=body["messages"])
        assert count.input_tokens == plain(whole)["usage"]["input_tokens"]
        stream(server.url, {**body, "tools": [WEATHER], "tool_choice": {"type": "any"}})
