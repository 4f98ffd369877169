"""openai-agents with its chat completions model: answers, tool loops, structured output and streams."""

import asyncio
from collections.abc import Iterator

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.exceptions import MaxTurnsExceeded
from agents.items import MessageOutputItem, ToolCallItem, ToolCallOutputItem
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent
from openai.types.shared import Reasoning

CONFIG = RunConfig(tracing_disabled=True)


@pytest.fixture(autouse=True)
def no_tracing() -> Iterator[None]:
    set_tracing_disabled(True)
    yield
    set_tracing_disabled(False)


def chat_model(url: str, name: str) -> OpenAIChatCompletionsModel:
    return OpenAIChatCompletionsModel(model=name, openai_client=AsyncOpenAI(base_url=url, api_key="none"))


@function_tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return {"Paris": "sunny in Paris", "Rome": "rainy in Rome"}[city]


async def test_a_tool_loop_of_the_demo_model(url: str) -> None:
    agent = Agent(
        name="Weather", model=chat_model(url, "chairlift:demo"), tools=[get_weather],
        model_settings=ModelSettings(temperature=0, max_tokens=200),
    )  # fmt: skip
    result = await Runner.run(agent, "What is the weather in Paris?", run_config=CONFIG)
    assert [type(item) for item in result.new_items] == [ToolCallItem, ToolCallOutputItem, MessageOutputItem]
    assert result.new_items[1].output == "sunny in Paris" and result.final_output
    assert result.context_wrapper.usage.requests == 2 and result.context_wrapper.usage.output_tokens > 0


@pytest.mark.parametrize("question", ["What is the weather in Paris?", "Please think about the weather in Rome."])
async def test_a_tool_loop(scripted_url: str, question: str) -> None:
    agent = Agent(name="Weather", model=chat_model(scripted_url, "scripted"), tools=[get_weather])
    result = await Runner.run(agent, question, run_config=CONFIG)
    expected = "It is sunny in Paris." if "Paris" in question else "It is rainy in Rome."
    assert result.final_output == expected


async def test_parallel_calls(scripted_url: str) -> None:
    called: list[str] = []

    @function_tool
    async def get_weather(city: str) -> str:
        """Get the weather of a city."""
        called.append(city)
        await asyncio.sleep(0)
        return "rainy in Rome" if city == "Rome" else "sunny in Paris"

    agent = Agent(
        name="Weather", model=chat_model(scripted_url, "scripted"), tools=[get_weather],
        model_settings=ModelSettings(parallel_tool_calls=True),
    )  # fmt: skip
    result = await Runner.run(agent, "What is the weather in Paris and Rome?", run_config=CONFIG)
    assert sorted(called) == ["Paris", "Rome"] and result.final_output == "It is rainy in Rome."


async def test_a_streamed_tool_loop(scripted_url: str) -> None:
    agent = Agent(
        name="Weather", model=chat_model(scripted_url, "scripted"), tools=[get_weather],
        model_settings=ModelSettings(include_usage=True),
    )  # fmt: skip
    result = Runner.run_streamed(agent, "What is the weather in Paris?", run_config=CONFIG)
    text = "".join([
        event.data.delta async for event in result.stream_events()
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
    ])  # fmt: skip
    assert text == result.final_output == "It is sunny in Paris."
    assert [type(item) for item in result.new_items] == [ToolCallItem, ToolCallOutputItem, MessageOutputItem]
    assert result.context_wrapper.usage.total_tokens > 0


async def test_structured_output(scripted_url: str, city_class: type) -> None:
    agent = Agent(name="Guide", model=chat_model(scripted_url, "scripted"), output_type=city_class)
    result = await Runner.run(agent, "Describe Paris", run_config=CONFIG)
    assert result.final_output == city_class(name="Paris", population=2_100_000, is_capital=True)


async def test_a_forced_tool_is_called_with_any_weights(url: str) -> None:
    agent = Agent(
        name="Weather", model=chat_model(url, "chairlift:demo"), tools=[get_weather],
        model_settings=ModelSettings(temperature=0, max_tokens=200, tool_choice="get_weather"),
        tool_use_behavior="stop_on_first_tool",
    )  # fmt: skip
    result = await Runner.run(agent, "What is the weather in Paris?", run_config=CONFIG)
    assert result.final_output == "sunny in Paris"


@pytest.mark.parametrize("settings", [
    ModelSettings(reasoning=Reasoning(effort="low")), ModelSettings(store=True, metadata={"a": "b"}, verbosity="low"),
    ModelSettings(max_tokens=100, frequency_penalty=0.1, presence_penalty=0.1, top_p=0.9, truncation="auto"),
], ids=["effort", "stored", "sampling"])  # fmt: skip
async def test_settings_of_the_model(scripted_url: str, settings: ModelSettings) -> None:
    agent = Agent(name="Legs", model=chat_model(scripted_url, "scripted"), model_settings=settings)
    result = await Runner.run(agent, "How many legs have two cats?", run_config=CONFIG)
    assert result.final_output == "Eight."


async def test_a_handoff_and_a_limit_of_turns(scripted_url: str) -> None:
    model = chat_model(scripted_url, "scripted")
    weather = Agent(name="Weather", model=model, tools=[get_weather])
    first = Agent(
        name="First", model=model, handoffs=[weather],
        model_settings=ModelSettings(tool_choice="transfer_to_weather"),
    )  # fmt: skip
    result = await Runner.run(first, "What is the weather in Paris?", run_config=CONFIG)
    assert result.last_agent.name == "Weather"
    with pytest.raises(MaxTurnsExceeded):
        await Runner.run(weather, "What is the weather in Paris?", run_config=CONFIG, max_turns=1)
