"""openai-agents with its default model, which uses the Responses API: answers, tool loops, handoffs and sessions."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from agents import (
    Agent,
    AgentOutputSchema,
    ModelSettings,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    SQLiteSession,
    ToolOutputText,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from agents.exceptions import MaxTurnsExceeded, ModelBehaviorError
from agents.items import (
    HandoffCallItem,
    HandoffOutputItem,
    MessageOutputItem,
    ReasoningItem,
    RunItem,
    ToolCallItem,
    ToolCallOutputItem,
)
from openai import AsyncOpenAI
from openai.types.responses import (
    ResponseCompletedEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseTextDeltaEvent,
)
from openai.types.shared import Reasoning
from pydantic import BaseModel

CONFIG = RunConfig(tracing_disabled=True)
DEMO = "chairlift:demo"
LOOP: list[type[RunItem]] = [ToolCallItem, ToolCallOutputItem, MessageOutputItem]
"""Items of an answer after one call of a tool."""


@pytest.fixture(autouse=True)
def no_tracing() -> Iterator[None]:
    set_tracing_disabled(True)
    yield
    set_tracing_disabled(False)


def response_model(url: str, name: str = "scripted") -> OpenAIResponsesModel:
    return OpenAIResponsesModel(model=name, openai_client=AsyncOpenAI(base_url=url, api_key="none", max_retries=0))


@function_tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return {"Paris": "sunny in Paris", "Rome": "rainy in Rome"}[city]


def weather_agent(url: str, **options: Any) -> "Agent[None]":
    return Agent(name="Weather", model=response_model(url), tools=[get_weather], **options)


def kinds(items: list[RunItem]) -> list[type[RunItem]]:
    return [type(item) for item in items]


async def test_the_default_model_is_that_of_responses(url: str) -> None:
    set_default_openai_client(AsyncOpenAI(base_url=url, api_key="none"), use_for_tracing=False)
    agent = Agent(name="Guide", model=DEMO, model_settings=ModelSettings(temperature=0, max_tokens=60))
    result = await Runner.run(agent, "What is the capital of France?", run_config=CONFIG)
    assert "Paris" in result.final_output and result.last_response_id is not None
    assert result.last_response_id.startswith("resp_")


async def test_a_tool_loop_of_the_demo_model(url: str) -> None:
    agent = Agent(
        name="Weather", model=response_model(url, DEMO), tools=[get_weather],
        model_settings=ModelSettings(temperature=0, max_tokens=200),
    )  # fmt: skip
    result = await Runner.run(agent, "What is the weather in Paris?", run_config=CONFIG)
    assert kinds(result.new_items) == LOOP and result.new_items[1].output == "sunny in Paris" and result.final_output
    usage = result.context_wrapper.usage
    assert usage.requests == 2 and usage.output_tokens > 0
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


@pytest.mark.parametrize(("question", "answer"), [
    ("What is the weather in Paris?", "It is sunny in Paris."),
    ("Please think about the weather in Rome.", "It is rainy in Rome."),
    ("What is the weather in Paris and Rome?", "It is rainy in Rome."),
])  # fmt: skip
@pytest.mark.parametrize("instructions", [None, "Be brief."])
async def test_a_tool_loop(scripted_url: str, question: str, answer: str, instructions: str | None) -> None:
    result = await Runner.run(weather_agent(scripted_url, instructions=instructions), question, run_config=CONFIG)
    assert result.final_output == answer
    assert (ReasoningItem in kinds(result.new_items)) == ("think" in question)
    again = await Runner.run(
        weather_agent(scripted_url), [*result.to_input_list(), {"role": "user", "content": question}], run_config=CONFIG
    )
    assert again.final_output == answer


async def test_a_tool_with_parts_as_its_output(scripted_url: str) -> None:
    @function_tool
    def get_weather(city: str) -> ToolOutputText:
        """Get the weather of a city."""
        return ToolOutputText(text=f"sunny in {city}")

    agent = Agent(name="Weather", model=response_model(scripted_url), tools=[get_weather])
    result = await Runner.run(agent, "What is the weather in Paris?", run_config=CONFIG)
    assert result.final_output == "It is sunny in Paris."


async def test_the_events_of_a_streamed_tool_loop(scripted_url: str) -> None:
    result = Runner.run_streamed(
        weather_agent(scripted_url), "Please think about the weather in Rome.", run_config=CONFIG
    )
    events = [event async for event in result.stream_events()]
    raw = [event.data for event in events if event.type == "raw_response_event"]
    assert "".join(each.delta for each in raw if isinstance(each, ResponseTextDeltaEvent)) == result.final_output
    arguments = "".join(each.delta for each in raw if isinstance(each, ResponseFunctionCallArgumentsDeltaEvent))
    assert arguments == '{"city": "Rome"}' and result.final_output == "It is rainy in Rome."
    assert "".join(each.delta for each in raw if each.type == "response.reasoning_text.delta") == "I need the weather."
    items = [event.name for event in events if event.type == "run_item_stream_event"]
    assert items == ["reasoning_item_created", "tool_called", "tool_output", "message_output_created"]
    assert kinds(result.new_items) == [ReasoningItem, *LOOP]
    completed = [each.response for each in raw if isinstance(each, ResponseCompletedEvent)]
    assert [each.id for each in completed] == [each.response_id for each in result.raw_responses]
    assert result.context_wrapper.usage.output_tokens == sum(
        each.usage.output_tokens for each in completed if each.usage
    )
    whole = await Runner.run(weather_agent(scripted_url), "Please think about the weather in Rome.", run_config=CONFIG)
    assert whole.context_wrapper.usage.total_tokens == result.context_wrapper.usage.total_tokens


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_structured_output(scripted_url: str, city_class: type, strict: bool, stream: bool) -> None:
    output = AgentOutputSchema(city_class, strict_json_schema=strict)
    agent = Agent(name="Guide", model=response_model(scripted_url), output_type=output)
    result: Any
    if stream:
        result = Runner.run_streamed(agent, "Describe Paris", run_config=CONFIG)
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(agent, "Describe Paris", run_config=CONFIG)
    assert result.final_output == city_class(name="Paris", population=2_100_000, is_capital=True)


async def test_a_forced_tool_is_called_with_any_weights(url: str) -> None:
    agent = Agent(
        name="Weather", model=response_model(url, DEMO), tools=[get_weather], tool_use_behavior="stop_on_first_tool",
        model_settings=ModelSettings(temperature=0, max_tokens=200, tool_choice="get_weather"),
    )  # fmt: skip
    result = await Runner.run(agent, "What is the weather in Paris?", run_config=CONFIG)
    assert result.final_output == "sunny in Paris"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_handoff_and_a_limit_of_turns(scripted_url: str, stream: bool) -> None:
    weather = weather_agent(scripted_url)
    first = Agent(
        name="First", model=response_model(scripted_url), handoffs=[weather],
        model_settings=ModelSettings(tool_choice="transfer_to_weather"),
    )  # fmt: skip
    question = "What is the weather in Paris?"
    result: Any
    if stream:
        result = Runner.run_streamed(first, question, run_config=CONFIG)
        updates = [each async for each in result.stream_events() if each.type == "agent_updated_stream_event"]
        assert [each.new_agent.name for each in updates] == ["First", "Weather"]
    else:
        result = await Runner.run(first, question, run_config=CONFIG)
    assert result.last_agent.name == "Weather"
    assert kinds(result.new_items)[:2] == [HandoffCallItem, HandoffOutputItem]
    with pytest.raises(MaxTurnsExceeded):
        await Runner.run(weather, question, run_config=CONFIG, max_turns=1)


@pytest.mark.parametrize("stream", [True, False])
async def test_the_server_keeps_the_conversation(scripted_url: str, stream: bool) -> None:
    """With auto_previous_response_id each turn sends its new items only, and has the whole conversation."""
    bodies: list[Any] = []

    async def keep(request: httpx.Request) -> None:
        bodies.append(json.loads(request.content))

    client = AsyncOpenAI(
        base_url=scripted_url, api_key="none", http_client=httpx.AsyncClient(event_hooks={"request": [keep]})
    )
    agent = Agent(name="Weather", model=OpenAIResponsesModel("scripted", client), tools=[get_weather])
    question = "Please think about the weather in Rome."
    result: Any
    if stream:
        result = Runner.run_streamed(agent, question, auto_previous_response_id=True, run_config=CONFIG)
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(agent, question, auto_previous_response_id=True, run_config=CONFIG)
    assert result.final_output == "It is rainy in Rome."
    assert [item["type"] for item in bodies[1]["input"]] == ["function_call_output"]
    assert bodies[1]["previous_response_id"] == result.raw_responses[0].response_id
    alone = await Runner.run(weather_agent(scripted_url), question, run_config=CONFIG)
    assert alone.raw_responses[1].usage.input_tokens == result.raw_responses[1].usage.input_tokens
    third = await Runner.run(
        agent, "How many legs have two cats?", previous_response_id=result.last_response_id, run_config=CONFIG
    )
    assert third.final_output == "Eight." and len(bodies[2]["input"]) == 1
    assert third.raw_responses[0].usage.input_tokens > result.raw_responses[1].usage.input_tokens


async def test_a_session(scripted_url: str) -> None:
    session, agent = SQLiteSession("one"), weather_agent(scripted_url)
    first = await Runner.run(agent, "Please think about the weather in Rome.", session=session, run_config=CONFIG)
    second = await Runner.run(agent, "How many legs have two cats?", session=session, run_config=CONFIG)
    assert (first.final_output, second.final_output) == ("It is rainy in Rome.", "Eight.")
    alone = await Runner.run(agent, "How many legs have two cats?", run_config=CONFIG)
    assert second.raw_responses[0].usage.input_tokens > alone.raw_responses[0].usage.input_tokens
    assert len(await session.get_items()) == 8


async def test_an_agent_as_a_tool(scripted_url: str) -> None:
    class Place(BaseModel):
        city: str

    inner = Agent(name="Inner", model=response_model(scripted_url))
    tool = inner.as_tool(
        "get_weather", "Get the weather of a city.", parameters=Place,
        input_builder=lambda options: f"sunny in {options['params']['city']}",
    )  # fmt: skip
    agent = Agent(name="Outer", model=response_model(scripted_url), tools=[tool])
    result = await Runner.run(agent, "What is the weather in Paris?", run_config=CONFIG)
    assert kinds(result.new_items) == LOOP and result.new_items[1].output == "It is sunny in Paris."


@pytest.mark.parametrize("settings", [
    ModelSettings(reasoning=Reasoning(effort="low", summary="auto")),
    ModelSettings(store=False, metadata={"a": "b"}, verbosity="low", response_include=["reasoning.encrypted_content"]),
    ModelSettings(max_tokens=100, top_p=0.9, truncation="auto", parallel_tool_calls=False, extra_body={"seed": 1}),
], ids=["effort", "unstored", "sampling"])  # fmt: skip
async def test_settings_of_the_model(scripted_url: str, settings: ModelSettings) -> None:
    agent = Agent(name="Legs", model=response_model(scripted_url), model_settings=settings)
    result = await Runner.run(agent, "How many legs have two cats?", run_config=CONFIG)
    assert result.final_output == "Eight." and kinds(result.new_items) == [ReasoningItem, MessageOutputItem]


async def test_logprobs(url: str) -> None:
    agent = Agent(
        name="Guide", model=response_model(url, DEMO),
        model_settings=ModelSettings(temperature=0, max_tokens=60, top_logprobs=2),
    )  # fmt: skip
    result = await Runner.run(agent, "What is the capital of France?", run_config=CONFIG)
    ((part,),) = (item.content for item in result.raw_responses[0].output)
    assert "".join(token.token for token in part.logprobs).startswith(part.text)
    assert all(len(token.top_logprobs) == 2 for token in part.logprobs)


async def test_a_response_that_is_cut_off(url: str) -> None:
    agent = Agent(name="Guide", model=response_model(url, DEMO), model_settings=ModelSettings(max_tokens=2))
    with pytest.raises(ModelBehaviorError, match="max_output_tokens"):
        await Runner.run(agent, "What is the capital of France?", run_config=CONFIG)


async def test_errors(url: str) -> None:
    with pytest.raises(openai.NotFoundError):
        await Runner.run(Agent(name="None", model=response_model(url, "missing")), "Hello", run_config=CONFIG)
    with pytest.raises(openai.NotFoundError, match="no response"):
        await Runner.run(
            Agent(name="Demo", model=response_model(url, DEMO)), "Hello", previous_response_id="resp_0",
            run_config=CONFIG,
        )  # fmt: skip
