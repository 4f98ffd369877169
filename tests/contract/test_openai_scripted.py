"""The openai client in front of a server whose model gives scripted replies: reasoning, tool loops, parsed objects."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from chairlift.engine.runner.fake_model import FakeConfig
from support_router_process import direct_or_routed
from support_server import Server, run, scripted_model_server, starting_server

MODEL = "scripted"
REASONING = "A cat has 4 legs.\n2 times 4 is 8."
LEGS: Any = [{"role": "user", "content": "How many legs have two cats?"}]


class City(BaseModel):
    name: str
    population: int
    is_capital: bool


class GetWeather(BaseModel):
    """Get the weather of a city."""

    city: str


WEATHER = openai.pydantic_function_tool(GetWeather, name="get_weather")


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


def asked(text: str, **options: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **options}


@pytest.mark.share(1)
def test_reasoning(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=LEGS).choices[0].message
    assert (whole.model_extra or {})["reasoning_content"] == REASONING and whole.content == "Eight."
    parts: dict[str, str] = {"reasoning_content": "", "content": ""}
    for chunk in client.chat.completions.create(model=MODEL, messages=LEGS, stream=True):
        for name in parts:
            parts[name] += getattr(chunk.choices[0].delta, name, None) or ""
    assert parts == {"reasoning_content": REASONING, "content": "Eight."}


def test_an_echoed_answer_with_reasoning(client: openai.OpenAI) -> None:
    """A client that sends the whole answer back continues the conversation."""
    answer = client.chat.completions.create(model=MODEL, messages=LEGS).choices[0].message
    history: Any = [*LEGS, answer, {"role": "user", "content": "sunny in Paris"}]
    reply = client.chat.completions.create(model=MODEL, messages=history)
    assert reply.choices[0].message.content == "It is sunny in Paris."


@pytest.mark.share(1)
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop_with_parallel_calls(client: openai.OpenAI, stream: bool) -> None:
    question = asked("What is the weather in Paris and Rome?", tools=[WEATHER])
    if stream:
        with client.chat.completions.stream(**question) as events:
            kinds = [event.type for event in events]
            message: Any = events.get_final_completion().choices[0].message
        assert kinds.count("tool_calls.function.arguments.done") == 2
    else:
        message = client.chat.completions.parse(**question).choices[0].message
    calls = message.tool_calls
    assert [call.function.parsed_arguments for call in calls] == [GetWeather(city="Paris"), GetWeather(city="Rome")]
    question["messages"] += [message.to_dict(), *(
        {"role": "tool", "tool_call_id": call.id, "content": f"{state} in {call.function.parsed_arguments.city}"}
        for call, state in zip(calls, ("sunny", "rainy"), strict=True)
    )]  # fmt: skip
    for part in question["messages"][1]["tool_calls"]:
        part["function"].pop("parsed_arguments")
    reply = client.chat.completions.create(**question)
    assert reply.choices[0].message.content == "It is rainy in Rome." and reply.choices[0].finish_reason == "stop"


@pytest.mark.share(1)
@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_before_a_call(client: openai.OpenAI, stream: bool) -> None:
    question = asked("Please think about the weather in Rome.", tools=[WEATHER])
    if stream:
        with client.chat.completions.stream(**question) as events:
            choice: Any = events.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(**question).choices[0]
    [call] = choice.message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Rome"} and choice.finish_reason == "tool_calls"
    assert choice.message.reasoning_content == "I need the weather."


@pytest.mark.share(1)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_call(client: openai.OpenAI, choice: Any) -> None:
    """The reply has only the arguments; the grammar adds the notation of the call."""
    completion = client.chat.completions.parse(**asked("Fill in Rome", tools=[WEATHER], tool_choice=choice))
    [call] = completion.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == GetWeather(city="Rome")
    assert completion.choices[0].finish_reason == "tool_calls"


@pytest.mark.share(1)
def test_a_parsed_object(client: openai.OpenAI) -> None:
    completion = client.chat.completions.parse(**asked("Describe Paris"), response_format=City)
    assert completion.choices[0].message.parsed == City(name="Paris", population=2_100_000, is_capital=True)
    with client.chat.completions.stream(**asked("Describe Paris"), response_format=City) as events:
        kinds = {event.type for event in events}
        final = events.get_final_completion()
    assert kinds >= {"content.delta", "content.done"}
    assert final.choices[0].message.parsed == completion.choices[0].message.parsed
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**asked("Describe Paris", max_tokens=5), response_format=City)


def test_an_empty_answer(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(**asked("Say nothing"))
    assert completion.choices[0].message.content == "" and completion.choices[0].finish_reason == "stop"


@pytest.mark.share(1)
def test_an_asynchronous_client(url: str) -> None:
    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

            async def ask(stream: bool) -> str:
                if not stream:
                    whole = await client.chat.completions.create(**asked("sunny in Paris"))
                    return whole.choices[0].message.content or ""
                chunks = await client.chat.completions.create(**asked("sunny in Paris"), stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

            return await asyncio.gather(*(ask(index % 2 == 0) for index in range(16)))

    assert run(ask_all()) == ["It is sunny in Paris."] * 16


def test_raw_responses_have_the_servers_headers(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(**asked("sunny in Paris"))
    assert raw.headers["content-type"] == "application/json" and raw.headers["x-request-id"] == raw.request_id
    assert raw.parse().choices[0].message.content == "It is sunny in Paris."
    with client.chat.completions.with_streaming_response.create(**asked("sunny in Paris"), stream=True) as streamed:
        lines = [line for line in streamed.iter_lines() if line]
        assert streamed.headers["content-type"].startswith("text/event-stream")
    assert lines[-1] == "data: [DONE]"


@pytest.mark.parametrize("route", ["moderations", "images"])
def test_a_route_that_does_not_exist_is_not_found(client: openai.OpenAI, route: str) -> None:
    calls = {
        "moderations": lambda: client.moderations.create(input="Hello"),
        "images": lambda: client.images.generate(prompt="A cat"),
    }
    with pytest.raises(openai.NotFoundError) as missing:
        calls[route]()
    assert missing.value.code == "not_found" and missing.value.type == "not_found_error" and missing.value.request_id


def test_the_clients_retries_wait_until_the_server_has_started() -> None:
    with starting_server(FakeConfig(vocab_size=128), factory="slow_start") as server:
        while not server.url:
            assert server.process.poll() is None, server.log
        statuses: list[int] = []
        hooks = {"response": [lambda response: statuses.append(response.status_code)]}
        with openai.OpenAI(
            base_url=server.url + "/v1", api_key="none", max_retries=20, http_client=client_with_hooks(hooks)
        ) as client:
            completion = client.chat.completions.create(
                model="fake", messages=[{"role": "user", "content": "hello"}], max_tokens=3
            )
    assert completion.choices[0].finish_reason == "length"
    assert statuses[0] == 503 and statuses[-1] == 200


def client_with_hooks(hooks: dict[str, list[Any]]) -> Any:
    """Return an HTTP client of the kind that the openai client takes."""
    return openai.DefaultHttpxClient(event_hooks=hooks)


def test_an_error_that_repeats_is_not_tried_again(url: str) -> None:
    statuses: list[int] = []
    hooks = {"response": [lambda response: statuses.append(response.status_code)]}
    with (
        openai.OpenAI(base_url=url, api_key="none", http_client=client_with_hooks(hooks)) as client,
        pytest.raises(openai.BadRequestError),
    ):
        client.chat.completions.create(**asked("Hello", temperature=3))
    assert statuses == [400]
