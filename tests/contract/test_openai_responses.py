"""The openai client's Responses API in front of a server whose model gives scripted replies, and behind a router."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from chairlift.protocol.sse import EventReader
from support_router_process import direct_or_routed
from support_sdk_schemas import checked
from support_server import Server, scripted_model_server
from support_shares import for_each

MODEL = "scripted"
REASONING = "A cat has 4 legs.\n2 times 4 is 8."
NOT_IN_TYPES = frozenset({"store", "name"})
"""Fields that OpenAI's own service sends, and its client's types lack."""

WEATHER: Any = {
    "type": "function", "name": "get_weather", "description": "Get the weather of a city.", "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
                   "additionalProperties": False},
}  # fmt: skip


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
        yield server.url + "/v1"


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def stream(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a streamed response, each checked against its type."""
    reader, events = EventReader(), []
    with httpx.stream("POST", f"{url}/responses", json={"model": MODEL, "stream": True, **body}, timeout=60) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        for piece in answer.iter_bytes():
            events += reader.push(piece)
    parsed = [json.loads(event.data) for event in events]
    assert [event.event for event in events] == [body["type"] for body in parsed]
    assert [body["sequence_number"] for body in parsed] == list(range(len(parsed)))
    for event in parsed:
        checked(ResponseStreamEvent, event, NOT_IN_TYPES)
    return parsed


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """Return the types of events without `response.`; equal ones in a row once."""
    names = [event["type"].removeprefix("response.") for event in events]
    return [name for number, name in enumerate(names) if number == 0 or names[number - 1] != name]


def test_a_response_has_the_fields_of_its_type(url: str) -> None:
    body = {"model": MODEL, "input": "sunny in Paris", "instructions": "Be brief.", "metadata": {"a": "b"},
            "temperature": 0.5, "max_output_tokens": 100}  # fmt: skip
    raw = httpx.post(f"{url}/responses", json=body, timeout=60).json()
    response = checked(Response, raw, NOT_IN_TYPES)
    assert response.output_text == "It is sunny in Paris." and response.status == "completed"
    assert response.instructions == "Be brief." and response.metadata == {"a": "b"} and response.temperature == 0.5
    assert response.usage is not None and response.usage.output_tokens > 0 and response.completed_at is not None
    assert response.output[0].id != response.id and response.model == MODEL


@pytest.mark.share(1)
def test_the_events_of_a_text(url: str) -> None:
    events = stream(url, {"input": "sunny in Paris"})
    assert kinds(events) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    last = events[-1]["response"]
    assert text == "It is sunny in Paris." == last["output"][0]["content"][0]["text"]
    assert last["usage"]["output_tokens"] > 0 and last["status"] == "completed"
    assert events[0]["response"]["id"] == last["id"] and events[0]["response"]["status"] == "in_progress"


@pytest.mark.share(1)
def test_the_events_of_reasoning_and_of_a_call(url: str) -> None:
    events = stream(url, {"input": "think about the weather in Rome", "tools": [WEATHER]})
    assert kinds(events) == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    reasoning, call = events[-1]["response"]["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "I need the weather."}]
    assert call["name"] == "get_weather" and json.loads(call["arguments"]) == {"city": "Rome"}
    assert events[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


@pytest.mark.share(1)
def test_an_answer_that_is_cut_off_is_incomplete(url: str, client: openai.OpenAI) -> None:
    events = stream(url, {"input": "sunny in Paris", "max_output_tokens": 3})
    assert events[-1]["type"] == "response.incomplete" and events[-1]["response"]["output"][0]["status"] == "incomplete"
    response = client.responses.create(model=MODEL, input="sunny in Paris", max_output_tokens=3)
    assert response.status == "incomplete" and response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.share(1)
def test_an_empty_answer_is_an_empty_message(url: str, client: openai.OpenAI) -> None:
    assert client.responses.create(model=MODEL, input="Say nothing").output_text == ""
    assert stream(url, {"input": "Say nothing"})[-1]["response"]["output"][0]["content"][0]["text"] == ""


def test_the_stream_helper(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="How many legs have two cats?") as events:
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert text == "Eight." == events.get_final_response().output_text


def test_parse(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model=MODEL, input="Describe Paris", text_format=City)
    assert parsed.output_parsed == City(name="Paris", population=2_100_000, is_capital=True)
    with client.responses.stream(model=MODEL, input="Describe Paris", text_format=City) as events:
        assert events.get_final_response().output_parsed == parsed.output_parsed


@pytest.mark.share(1)
def test_a_tool_loop(client: openai.OpenAI) -> None:
    items: Any = [{"role": "user", "content": "What is the weather in Paris and Rome?"}]
    first = client.responses.create(model=MODEL, input=items, tools=[WEATHER])
    calls = [item for item in first.output if item.type == "function_call"]
    assert [json.loads(call.arguments)["city"] for call in calls] == ["Paris", "Rome"]
    items += [item.model_dump() for item in first.output]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "rainy in Rome"} for call in calls]
    assert client.responses.create(model=MODEL, input=items, tools=[WEATHER]).output_text == "It is rainy in Rome."


@pytest.mark.share(1)
def test_a_conversation_goes_on_from_a_stored_response(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="weather in Paris", tools=[WEATHER])
    (call,) = first.output
    assert call.type == "function_call"
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny in Paris"}]
    second = client.responses.create(
        model=MODEL, input=output, previous_response_id=first.id, tools=[WEATHER], instructions="Be brief."
    )
    assert second.output_text == "It is sunny in Paris." and second.previous_response_id == first.id
    third = client.responses.create(model=MODEL, input="How many legs have two cats?", previous_response_id=second.id)
    assert third.output_text == "Eight."
    alone = client.responses.create(model=MODEL, input="How many legs have two cats?", store=False)
    assert third.usage is not None and alone.usage is not None
    assert third.usage.input_tokens > alone.usage.input_tokens + len("weather in ParisIt is sunny in Paris.")


def test_items_by_reference(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="weather in Paris", tools=[WEATHER])
    (call,) = first.output
    assert call.type == "function_call"
    items: Any = [
        {"role": "user", "content": "weather in Paris"}, {"type": "item_reference", "id": call.id},
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny in Paris"},
    ]  # fmt: skip
    assert client.responses.create(model=MODEL, input=items).output_text == "It is sunny in Paris."


def test_stored_responses(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="sunny in Paris")
    assert client.responses.retrieve(first.id) == first
    (item,) = client.responses.input_items.list(first.id).data
    assert item.type == "message" and item.content[0].type == "input_text"
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(first.id)
    client.responses.delete(first.id)
    for read in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            read(first.id)
    with pytest.raises(openai.NotFoundError, match="send the conversation itself"):
        client.responses.create(model=MODEL, input="Hi", previous_response_id=first.id)
    unstored = client.responses.create(model=MODEL, input="sunny in Paris", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unstored.id)


@pytest.mark.share(3)
@pytest.mark.parametrize(("body", "param"), [
    ({"input": None}, "input"),
    ({"input": [7]}, "input[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://127.0.0.1/x"}]}]},
     "input[0].content[0]"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
    ({"input": [{"type": "robot", "id": "x"}]}, "input[0].type"),
    ({"input": [{"type": "item_reference", "id": "msg_x_0"}]}, "input[0].id"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": "many"}, "max_output_tokens"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"tools": [{"type": 7}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "f", "parameters": 7}]}, "tools[0].parameters"),
    ({"tool_choice": {"type": "hosted"}}, "tool_choice"),
    ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"),
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"include": "x"}, "include"),
    ({"temperature": 9}, "temperature"),
    ({"stream": "yes"}, "stream"),
])  # fmt: skip
def test_a_bad_field_is_named_as_the_request_has_it(url: str, body: dict[str, Any], param: str) -> None:
    answer = httpx.post(f"{url}/responses", json={"model": MODEL, "input": "Hi", **body}, timeout=60)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param) and param in error["message"], answer.text


@for_each(("body", "ignored"), [
    ({"input": []}, None),
    ({"tools": [WEATHER, {"type": "custom", "name": "apply_patch"}, {"type": "web_search"}, {"type": "local_shell"},
                {"type": "namespace", "name": "n", "tools": [{**WEATHER, "name": "f"}]}, {"type": "image_generation"}]},
     "tools.web_search, tools.local_shell, tools.image_generation"),
    ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tools.web_search, tool_choice"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input.web_search_call"),
])  # fmt: skip
def test_what_agents_send_is_taken(url: str, body: dict[str, Any], ignored: str | None) -> None:
    answer = httpx.post(f"{url}/responses", json={"model": MODEL, "input": "Hi", **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get("x-ignored-parameters") == ignored


def test_a_prompt_that_is_too_long_is_named(url: str) -> None:
    answer = httpx.post(f"{url}/responses", json={"model": MODEL, "input": "a" * 20_000}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")


def test_fields_without_effect_are_named(url: str) -> None:
    body = {"model": MODEL, "input": "Say nothing", "truncation": "auto", "text": {"verbosity": "low"}, "unknown": 1,
            "reasoning": {"effort": "low"}}  # fmt: skip
    answer = httpx.post(f"{url}/responses", json=body, timeout=60)
    assert answer.headers["x-ignored-parameters"] == "truncation, unknown, text.verbosity, reasoning.effort"


@pytest.mark.parametrize("streams", [False, True])
def test_a_body_that_is_nested_deeply_is_rejected_before_the_model_works(url: str, streams: bool) -> None:
    nested: Any = 1
    for _ in range(300):
        nested = {"a": nested}
    item = {"role": "user", "content": "sunny in Paris", "unknown": nested}
    body = {"model": MODEL, "input": [item], "stream": streams}
    answer = httpx.post(f"{url}/responses", json=body, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "malformed_request"), answer.text


NOT_COUNTED = frozenset({"temperature", "store"})
"""Fields of a request for a response that the count's method of the client does not have."""

FORMAT: Any = {"type": "json_schema", "name": "city", "schema": City.model_json_schema()}


@pytest.mark.share(3)
@pytest.mark.parametrize("body", [
    {"input": "sunny in Paris"},
    {"input": "sunny in Paris", "instructions": "Be brief.", "temperature": 0.5, "store": False},
    *({"input": "weather in Paris", "tools": [WEATHER], "tool_choice": choice, "instructions": "Be brief."}
      for choice in ("auto", "none", "required", {"type": "function", "name": "get_weather"})),
    {"input": "weather in Paris", "tools": [WEATHER, {"type": "function", "name": "other"}], "tool_choice": {
        "type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "other"}]}},
    {"input": "Describe Paris", "tools": [WEATHER], "text": {"format": FORMAT}},
    {"input": [{"role": "user", "content": "Hi"}, {"type": "reasoning", "summary": [{"type": "x", "text": "Hm."}]},
               {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "sunny in Paris"}]},
])  # fmt: skip
def test_input_tokens_are_counted_as_the_response_counts_them(client: openai.OpenAI, body: dict[str, Any]) -> None:
    counted = client.responses.input_tokens.count(
        model=MODEL, **{name: body[name] for name in body.keys() - NOT_COUNTED}
    )
    usage = client.responses.create(model=MODEL, max_output_tokens=16, **body).usage
    assert usage is not None and counted.input_tokens == usage.input_tokens > 0
    assert counted.object == "response.input_tokens"


def test_a_compacted_conversation_goes_on(client: openai.OpenAI) -> None:
    question: Any = {"role": "user", "content": "How many legs have two cats?"}
    first = client.responses.create(model=MODEL, input=[question])
    conversation: Any = [question, *[item.to_dict() for item in first.output]]
    for body in ({"input": conversation}, {"previous_response_id": first.id}):
        compacted = client.responses.compact(model=MODEL, instructions="Be brief.", **body)
        assert compacted.object == "response.compaction" and compacted.usage.input_tokens > 0
        kept, compaction = [item.to_dict(warnings=False) for item in compacted.output]
        assert (kept["role"], kept["content"]) == ("user", [{"type": "input_text", "text": question["content"]}])
        assert compaction["type"] == "compaction"
    for following, answer in (
        ([], "I have read the summary."),
        ([{"role": "user", "content": "rainy in Rome"}], "It is rainy in Rome."),
    ):
        after = client.responses.create(model=MODEL, input=[kept, compaction, *following])
        assert after.output_text == answer
        counted = client.responses.input_tokens.count(model=MODEL, input=[kept, compaction, *following])
        assert after.usage is not None and counted.input_tokens == after.usage.input_tokens


def test_a_trigger_asks_for_a_compaction(url: str, client: openai.OpenAI) -> None:
    items: Any = [{"role": "user", "content": "How many legs have two cats?"}, {"type": "compaction_trigger"}]
    whole = client.responses.create(model=MODEL, input=items)
    events = stream(url, {"input": items})
    for (item,) in (whole.to_dict()["output"], events[-1]["response"]["output"]):
        assert item["type"] == "compaction"
        after = client.responses.create(model=MODEL, input=[items[0], item])
        assert after.output_text == "I have read the summary."
    body: Any = {"model": MODEL, "input": [items[1]], "previous_response_id": whole.id, "tools": [WEATHER], "stop": "x"}
    again = httpx.post(f"{url}/responses", json=body, timeout=60)
    assert again.headers["x-ignored-parameters"] == "stop, tools" and again.json()["previous_response_id"] == whole.id
    client.responses.delete(whole.id)
    after = client.responses.create(model=MODEL, input="rainy in Rome", previous_response_id=again.json()["id"])
    assert after.output_text == "It is rainy in Rome."


@for_each("path", ["/responses", "/responses/compact", "/responses/input_tokens"])
def test_a_trigger_alone_has_nothing_to_summarize(url: str, path: str) -> None:
    answer = httpx.post(url + path, json={"model": MODEL, "input": [{"type": "compaction_trigger"}]}, timeout=60)
    assert answer.status_code == 400 and "nothing to summarize" in answer.json()["error"]["message"], answer.text


@for_each(("body", "status", "param"), [
    ({}, 400, "input"), ({"input": [7]}, 400, "input[0]"), ({"input": "Hi", "stream": True}, 400, "stream"),
    ({"input": "Hi", "model": "missing"}, 404, "model"), ({"input": "x" * 40_000}, 400, "input"),
    ({"previous_response_id": "resp_0"}, 404, "previous_response_id"),
])  # fmt: skip
def test_what_cannot_be_compacted(url: str, body: dict[str, Any], status: int, param: str) -> None:
    answer = httpx.post(f"{url}/responses/compact", json={"model": MODEL, **body}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


@pytest.mark.share(1)
def test_the_tokens_of_a_stored_conversation_are_counted(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="weather in Paris", tools=[WEATHER])
    (call,) = first.output
    assert call.type == "function_call"
    items: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny in Paris"}]
    body: Any = {"model": MODEL, "input": items, "previous_response_id": first.id, "tools": [WEATHER]}
    counted = client.responses.input_tokens.count(**body).input_tokens
    usage = client.responses.create(**body).usage
    assert usage is not None and first.usage is not None
    assert counted == usage.input_tokens > first.usage.input_tokens


@pytest.mark.share(4)
@pytest.mark.parametrize(("body", "status", "param"), [
    ({"input": [7]}, 400, "input[0]"), ({"tools": [{"type": 7}]}, 400, "tools[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://127.0.0.1/x"}]}]}, 400,
     "input[0].content[0]"),
    ({"tool_choice": {"type": "function", "name": "f"}}, 400, "tool_choice"), ({"model": "missing"}, 404, "model"),
    ({"previous_response_id": "resp_0"}, 404, "previous_response_id"),
])  # fmt: skip
def test_what_cannot_be_counted(url: str, body: dict[str, Any], status: int, param: str) -> None:
    answer = httpx.post(f"{url}/responses/input_tokens", json={"model": MODEL, "input": "Hi", **body}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
