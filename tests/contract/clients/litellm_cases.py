"""litellm with its providers for servers of OpenAI's API: `openai/` and `hosted_vllm/`."""

import json
from typing import Any

import litellm
import pytest

PROVIDERS = ["openai", "hosted_vllm"]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}  # fmt: skip


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def options(url: str, provider: str, text: str, model: str = "scripted", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": f"{provider}/{model}", "api_base": url, "api_key": "none", "messages": messages, **more}


def test_an_answer(url: str, provider: str) -> None:
    answer = litellm.completion(**options(
        url, provider, "What is the capital of France?", "chairlift:demo", temperature=0, max_tokens=40, seed=1,
    ))  # fmt: skip
    assert "Paris" in answer.choices[0].message.content and answer.usage.completion_tokens > 0


def test_a_stream(url: str, provider: str) -> None:
    question = options(url, provider, "What is the capital of France?", "chairlift:demo", temperature=0, max_tokens=40)
    chunks = list(litellm.completion(**question, stream=True, stream_options={"include_usage": True}))
    whole = litellm.completion(**question)
    rebuilt = litellm.stream_chunk_builder(chunks)
    assert rebuilt.choices[0].message.content == whole.choices[0].message.content
    assert rebuilt.choices[0].finish_reason == whole.choices[0].finish_reason
    assert rebuilt.usage.completion_tokens == whole.usage.completion_tokens


async def test_an_asynchronous_stream(scripted_url: str, provider: str) -> None:
    stream = await litellm.acompletion(**options(scripted_url, provider, "sunny in Paris"), stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "It is sunny in Paris."


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning(scripted_url: str, provider: str, stream: bool) -> None:
    question = options(scripted_url, provider, "How many legs have two cats?", stream=stream)
    answer = litellm.completion(**question)
    message = (litellm.stream_chunk_builder(list(answer)) if stream else answer).choices[0].message
    assert message.reasoning_content == "A cat has 4 legs.\n2 times 4 is 8." and message.content == "Eight."


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop(scripted_url: str, provider: str, stream: bool) -> None:
    question = options(scripted_url, provider, "What is the weather in Paris and Rome?", tools=[WEATHER], stream=stream)
    answer = litellm.completion(**question)
    whole = litellm.stream_chunk_builder(list(answer)) if stream else answer
    message = whole.choices[0].message
    cities = [json.loads(call.function.arguments)["city"] for call in message.tool_calls]
    assert cities == ["Paris", "Rome"] and whole.choices[0].finish_reason == "tool_calls"
    question["messages"] += [message.model_dump(), *(
        {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": f"sunny in {city}"}
        for call, city in zip(message.tool_calls, cities, strict=True)
    )]  # fmt: skip
    reply = litellm.completion(**{**question, "stream": False})
    assert reply.choices[0].message.content == "I do not know."


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_call(url: str, provider: str, choice: Any) -> None:
    answer = litellm.completion(**options(
        url, provider, "What is the weather in Paris?", "chairlift:demo", tools=[WEATHER], tool_choice=choice,
        temperature=0, max_tokens=200,
    ))  # fmt: skip
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather" and "city" in json.loads(call.function.arguments)


def test_structured_output(scripted_url: str, provider: str, city_class: Any) -> None:
    answer = litellm.completion(**options(scripted_url, provider, "Describe Paris", response_format=city_class))
    assert city_class.model_validate_json(answer.choices[0].message.content).population == 2_100_000


def test_a_text_completion(url: str, provider: str) -> None:
    answer = litellm.text_completion(
        model=f"{provider}/chairlift:demo", prompt="Once upon a time", api_base=url, api_key="none", max_tokens=5
    )
    assert answer.choices[0].text and answer.usage.completion_tokens == 5


def test_errors(url: str, provider: str) -> None:
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**options(url, provider, "Hello", "chairlift:demo", temperature=3), max_retries=0)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**options(url, provider, "Hello", "missing"), max_retries=0)
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**options(url, provider, "word " * 5000, "chairlift:demo"), max_retries=0)
