"""LangChain in front of a real server, asked for what a model of three million parameters can do.

`make test-contract` runs this after langchain-tests, whose tests of structured output, agents and foreign scripts ask
for more than the demo model knows. Here the schema leaves it no room, so that only the server can be at fault.
"""

import os
from enum import Enum
from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

QUESTION = "Is Paris the capital of France? Say it in JSON."


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class City(BaseModel):
    """What is known of a city."""

    is_capital: bool
    size: Size
    district: Literal["第一区", "Île-de-France"]


@pytest.fixture
def model() -> ChatOpenAI:
    url, name = os.environ["CHAIRLIFT_SUITE_URL"], os.environ["CHAIRLIFT_SUITE_MODEL"]
    return ChatOpenAI(model=name, base_url=url, api_key="none", temperature=0, max_tokens=200)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("strict", [None, True])
def test_structured_output(model: ChatOpenAI, method: Any, strict: bool | None) -> None:
    asked = model.with_structured_output(City, method=method, strict=strict)
    whole = asked.invoke(QUESTION)
    assert isinstance(whole, City)
    assert list(asked.stream(QUESTION))[-1] == whole


async def test_structured_output_async(model: ChatOpenAI) -> None:
    asked = model.with_structured_output(City.model_json_schema(), method="json_schema")
    whole = await asked.ainvoke(QUESTION)
    assert City.model_validate(whole)
    assert [chunk async for chunk in asked.astream(QUESTION)][-1] == whole


def test_an_agent_goes_around(model: ChatOpenAI) -> None:
    """The demo model has learnt a tool whose argument is a city."""

    @tool
    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        return "It is sunny."

    able = model.bind_tools([get_weather])
    question = HumanMessage("What is the weather in Paris?")
    called = able.invoke([question])
    assert isinstance(called, AIMessage)
    [call] = called.tool_calls
    assert call["args"] == {"city": "Paris"}
    assert able.invoke([question, called, get_weather.invoke(call)]).content


@pytest.mark.parametrize("stream", [False, True])
def test_scripts_of_arguments_stay_what_they_are(model: ChatOpenAI, stream: bool) -> None:
    @tool
    def new_customer(name: Literal["你好啊集团", "こんにちは株式会社"]) -> str:
        """Create a customer."""
        return name

    able = model.bind_tools([new_customer], tool_choice="any")
    question = "Create a customer."
    if stream:
        message = None
        for chunk in able.stream(question):
            message = chunk if message is None else message + chunk
    else:
        message = able.invoke(question)
    assert message.tool_calls[0]["args"]["name"] in ("你好啊集团", "こんにちは株式会社")
