"""The ollama client in front of a server with scripted replies or the demo model, directly and through a router."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest
from pydantic import BaseModel

from support_router_process import direct_or_routed
from support_sdk_schemas import checked_closely
from support_server import Server, real_server, scripted_model_server

MODEL, DEMO = "scripted", "chairlift:demo"
OWN = frozenset({"name", "bytes"})
"""What Ollama sends, and its client's types lack."""

PARIS: Any = [{"role": "user", "content": "sunny in Paris"}]
COUNTS = ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration")


class City(BaseModel):
    name: str
    population: int
    is_capital: bool


def get_weather(city: str) -> str:
    """Get the weather of a city.

    Args:
        city: the city's name

    Returns:
        str: the weather
    """
    return f"rainy in {city}"


@pytest.fixture(scope="module")
def replica() -> Iterator[Server]:
    with scripted_model_server() as server:
        yield server


@pytest.fixture(scope="module", params=["direct", "router"])
def url(request: pytest.FixtureRequest, replica: Server) -> Iterator[str]:
    with direct_or_routed(request.param, replica) as server:
        yield server.url


@pytest.fixture(scope="module", params=["direct", "router"])
def demo_url(request: pytest.FixtureRequest) -> Iterator[str]:
    with (
        real_server("--dtype", "float32", "--num-blocks", "512") as replica,
        direct_or_routed(request.param, replica) as server,
    ):
        yield server.url


@pytest.fixture
def client(url: str) -> ollama.Client:
    return ollama.Client(url, timeout=60)


def post(url: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}{path}", json={"model": MODEL, **body}, timeout=60)


def lines(url: str, path: str, **body: Any) -> list[dict[str, Any]]:
    """Return the lines of a streamed response; a stream is what a body without `stream` gets."""
    response = post(url, path, **body)
    assert response.status_code == 200 and response.headers["content-type"] == "application/x-ndjson", response.text
    found = [json.loads(line) for line in response.text.splitlines()]
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    return found


def test_a_whole_message(url: str) -> None:
    raw = post(url, "/api/chat", messages=PARIS, stream=False).json()
    response = checked_closely(ollama.ChatResponse, raw)
    assert response.message.content == "It is sunny in Paris." and response.done_reason == "stop" and response.done
    assert response.model == MODEL and response.load_duration == 0
    assert response.total_duration is not None and response.eval_duration is not None
    assert response.prompt_eval_duration is not None
    assert response.total_duration >= response.prompt_eval_duration + response.eval_duration > 0
    assert set(COUNTS) <= raw.keys()


def test_a_streamed_message(url: str) -> None:
    parts = lines(url, "/api/chat", messages=PARIS)
    for part in parts:
        checked_closely(ollama.ChatResponse, part)
    assert "".join(part["message"]["content"] for part in parts) == "It is sunny in Paris." and len(parts) > 1
    last = parts[-1]
    assert last["done_reason"] == "stop" and set(COUNTS) <= last.keys() and last["eval_count"] > 0
    assert last["total_duration"] >= last["prompt_eval_duration"] > 0


def test_a_generation(url: str, client: ollama.Client) -> None:
    raw = post(url, "/api/generate", prompt="How many legs have two cats?", stream=False).json()
    response = checked_closely(ollama.GenerateResponse, raw)
    assert response.response == "Eight." and response.thinking == "A cat has 4 legs.\n2 times 4 is 8."
    parts = lines(url, "/api/generate", prompt="sunny in Paris", system="Be brief.")
    for part in parts:
        checked_closely(ollama.GenerateResponse, part)
    assert "".join(part["response"] for part in parts) == "It is sunny in Paris."
    streamed = client.generate(MODEL, "How many legs have two cats?", stream=True)
    assert "".join(part.thinking or "" for part in streamed) == "A cat has 4 legs.\n2 times 4 is 8."


def test_a_raw_prompt_is_not_rendered(client: ollama.Client) -> None:
    prompt = "<|user|>sunny in Paris<|assistant|>"
    whole = client.generate(MODEL, prompt, raw=True)
    assert whole.response == "It is sunny in Paris." and whole.prompt_eval_count == 1 + len(prompt)  # BOS
    assert client.generate(MODEL, prompt, raw=True, options={"num_predict": 3}).done_reason == "length"
    parts = list(client.generate(MODEL, prompt, raw=True, stream=True))
    assert "".join(part.response or "" for part in parts) == whole.response and parts[-1].eval_count == whole.eval_count


def test_an_answer_that_is_cut_off(client: ollama.Client) -> None:
    for options in ({"num_predict": 3}, ollama.Options(num_predict=3)):
        response = client.chat(MODEL, PARIS, options=options)
        assert response.done_reason == "length" and response.eval_count == 3 and response.message.content == "It "
    assert client.chat(MODEL, PARIS, options={"num_predict": -1}).done_reason == "stop"
    assert client.chat(MODEL, PARIS, options={"stop": ["sunny"]}).message.content == "It is "


def test_a_tool_loop(client: ollama.Client) -> None:
    messages: Any = [{"role": "user", "content": "What is the weather in Paris and Rome?"}]
    response = client.chat(MODEL, messages, tools=[get_weather])
    calls = response.message.tool_calls or []
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"}),
    ]  # fmt: skip
    messages.append(response.message)
    messages += [
        {"role": "tool", "tool_name": call.function.name, "content": get_weather(**call.function.arguments)}
        for call in calls
    ]
    assert client.chat(MODEL, messages, tools=[get_weather]).message.content == "It is rainy in Rome."


def test_calls_in_a_stream(client: ollama.Client) -> None:
    asked: Any = [{"role": "user", "content": "think about the weather in Rome"}]
    parts = list(client.chat(MODEL, asked, tools=[get_weather], stream=True))
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert [call.function.arguments for call in calls] == [{"city": "Rome"}]
    assert "".join(part.message.thinking or "" for part in parts) == "I need the weather."
    assert parts[-1].done_reason == "stop"


@pytest.mark.share(1)
def test_a_format(client: ollama.Client) -> None:
    asked: Any = [{"role": "user", "content": "Describe Paris"}]
    for response in (
        client.chat(MODEL, asked, format=City.model_json_schema()).message.content,
        client.generate(MODEL, "Describe Paris", format=City.model_json_schema()).response,
        client.generate(MODEL, "Describe Paris", format="json").response,
    ):
        assert City.model_validate_json(response or "").name == "Paris"
    rome: Any = [{"role": "user", "content": "Describe Rome"}]  # the script's reply has a text as the population
    content = client.chat(MODEL, rome, format=City.model_json_schema(), options={"num_predict": 200}).message.content
    assert '"population": "many"' not in (content or "")


def test_reasoning_goes_back(client: ollama.Client) -> None:
    first = client.chat(MODEL, [{"role": "user", "content": "How many legs have two cats?"}], think=True)
    assert first.message.content == "Eight." and first.message.thinking is not None
    again = client.chat(MODEL, [first.message, *PARIS])
    plain = client.chat(MODEL, [{"role": "assistant", "content": "Eight."}, *PARIS])
    assert again.prompt_eval_count is not None and plain.prompt_eval_count is not None
    assert again.prompt_eval_count >= plain.prompt_eval_count + len(first.message.thinking)


def test_a_request_without_a_text_loads(url: str, client: ollama.Client) -> None:
    raw = post(url, "/api/chat").json()
    assert checked_closely(ollama.ChatResponse, raw).done_reason == "load" and raw["done"] is True
    assert client.generate(MODEL, keep_alive=0).done_reason == "unload"
    assert [part.done_reason for part in client.generate(MODEL, stream=True)] == ["load"]
    assert client.embed(MODEL).embeddings == []
    with pytest.raises(ollama.ResponseError) as caught:
        client.generate("other")
    assert caught.value.status_code == 404


def test_models(url: str, client: ollama.Client) -> None:
    listed = checked_closely(ollama.ListResponse, httpx.get(f"{url}/api/tags").json(), OWN).models[0]
    running = checked_closely(ollama.ProcessResponse, httpx.get(f"{url}/api/ps").json()).models[0]
    assert listed.model == running.model == MODEL and listed.digest == running.digest
    assert running.context_length == 16_384 and client.list().models[0] == listed and client.ps().models[0] == running
    raw = post(url, "/api/show").json()
    shown = checked_closely(ollama.ShowResponse, raw)
    assert shown.capabilities == ["completion", "tools", "thinking", "embedding"]
    assert client.show(f"{MODEL}:latest") == shown and "details" in raw
    assert httpx.get(f"{url}/api/version").json()["version"].startswith("0.")


def test_clients_find_a_server(url: str) -> None:
    assert httpx.head(url).status_code == httpx.get(url).status_code == 200


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images"),
    ("/api/chat", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
    ("/api/chat", {"messages": PARIS, "options": {"temperature": 9}}, "options.temperature"),
    ("/api/chat", {"messages": PARIS, "options": {"num_predict": "many"}}, "options.num_predict"),
    ("/api/chat", {"messages": PARIS, "options": {"stop": ["a" * 1000] * 17}}, "options.stop"),
    ("/api/chat", {"messages": PARIS, "format": {"type": "banana"}}, "format"),
    ("/api/chat", {"messages": PARIS, "tools": [{"type": "function", "function": {"name": "a b"}}]},
     "tools[0].function.name"),
    ("/api/chat", {"messages": PARIS, "think": "enormous"}, "think"),
    ("/api/chat", {"messages": [{"role": "user", "content": "a" * 20_000}]}, "messages"),
    ("/api/generate", {"prompt": "a" * 20_000}, "prompt"),
    ("/api/generate", {"prompt": "a" * 20_000, "raw": True}, "prompt"),
    ("/api/generate", {"prompt": "x", "template": "{{ .Prompt }}"}, "template"),
    ("/api/generate", {"prompt": "x", "suffix": "y"}, "suffix"),
    ("/api/generate", {"prompt": "x", "format": {"type": "banana"}, "raw": True}, "format"),
    ("/api/embed", {"input": ["a", ""]}, "input"), ("/api/embed", {"input": "a", "dimensions": 99_999}, "dimensions"),
    ("/api/embeddings", {"prompt": "a" * 20_000}, "prompt"), ("/api/show", {"model": 7}, "model"),
]  # fmt: skip


@pytest.mark.share(5)
@pytest.mark.parametrize(("path", "body", "field"), BAD)
def test_a_bad_field_is_named_as_the_request_has_it(url: str, path: str, body: dict[str, Any], field: str) -> None:
    response = post(url, path, **body)
    assert response.status_code == 400 and response.json().keys() == {"error"}, response.text
    assert response.json()["error"].startswith(field) and response.headers["x-request-id"]


def test_errors_are_those_of_the_client(client: ollama.Client) -> None:
    for stream in (False, True):
        with pytest.raises(ollama.ResponseError) as caught:
            list(client.chat("other", PARIS, stream=stream))
        assert caught.value.status_code == 404 and "'other' is not served here" in caught.value.error
    for call in (client.pull, client.delete, client.push, client.create):
        with pytest.raises(ollama.ResponseError, match="cannot fetch, make, copy or delete any") as caught:
            call(MODEL)
        assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError) as caught:
        client.show("other")
    assert caught.value.status_code == 404


def test_fields_without_effect_are_named(url: str) -> None:
    body: Any = {"messages": PARIS, "keep_alive": "5m", "options": {"num_ctx": 4096}, "think": False, "unknown": 1}
    response = post(url, "/api/chat", **body)
    assert response.headers["x-ignored-parameters"] == "keep_alive, unknown, options.num_ctx, think"


def test_the_asynchronous_client(url: str) -> None:
    async def scenario() -> str:
        client = ollama.AsyncClient(url, timeout=60)
        parts = [part async for part in await client.chat(MODEL, PARIS, stream=True)]
        assert parts[-1].done and (await client.list()).models[0].model == MODEL
        return "".join(part.message.content or "" for part in parts)

    assert asyncio.run(scenario()) == "It is sunny in Paris."


@pytest.mark.full
def test_the_demo_model(demo_url: str) -> None:
    client = ollama.Client(demo_url, timeout=60)
    asked: Any = [{"role": "user", "content": "What is the capital of France?"}]
    options = {"temperature": 0, "num_predict": 12}
    whole = client.chat(DEMO, asked, options=options)
    streamed = list(client.chat(DEMO, asked, options=options, stream=True))
    assert "".join(part.message.content or "" for part in streamed) == whole.message.content
    with_logprobs = client.chat(DEMO, asked, options=options, logprobs=True, top_logprobs=2)
    tokens = with_logprobs.logprobs or []
    assert len(tokens) == with_logprobs.eval_count and all(len(token.top_logprobs or ()) == 2 for token in tokens)
    raw = client.generate(DEMO, "The capital", raw=True, options=options, logprobs=True, top_logprobs=2)
    assert raw.eval_count == 12 == len(raw.logprobs or ())
    both = client.embed(DEMO, ["Paris", "Rome"])
    assert len(client.embed(DEMO, "Rome", dimensions=8).embeddings[0]) == 8 and len(both.embeddings) == 2
    one = client.embeddings(DEMO, "Rome").embedding
    length = sum(each * each for each in one) ** 0.5
    assert [each / length for each in one] == pytest.approx(both.embeddings[1], abs=1e-5)
    (model,) = client.list().models
    assert (
        model.details is not None and model.details["family"] == "llama" and model.size and model.details.parameter_size
    )
