"""LangChain in front of a real server: what a model of three million parameters can do, and embeddings.

`make test-contract` runs this after langchain-tests, whose tests of structured output, agents and foreign scripts ask
for more than the demo model knows. Here the schema leaves it no room, so that only the server can be at fault.
"""

import math
import os
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
import tiktoken
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from tokenizers import Tokenizer

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
def server() -> dict[str, Any]:
    return {
        "model": os.environ["CHAIRLIFT_SUITE_MODEL"], "base_url": os.environ["CHAIRLIFT_SUITE_URL"], "api_key": "none"
    }  # fmt: skip


@pytest.fixture(params=["completions", "responses"])
def model(request: pytest.FixtureRequest, server: dict[str, Any]) -> ChatOpenAI:
    """The model by each of the two APIs."""
    return ChatOpenAI(**server, temperature=0, max_tokens=200, use_responses_api=request.param == "responses")


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


def text_of(model: ChatOpenAI, stream: bool) -> AIMessage:
    """Return the answer to a question, whole or as the sum of its chunks."""
    if not stream:
        return model.invoke("What is the capital of France?")
    message = AIMessageChunk("")
    for chunk in model.stream("What is the capital of France?"):
        message = message + chunk
    return message


def test_an_answer_and_its_stream_are_the_same(model: ChatOpenAI) -> None:
    whole, streamed = (
        text_of(model, stream=False),
        text_of(model.model_copy(update={"stream_usage": True}), stream=True),
    )
    assert "Paris" in str(whole.text) and streamed.text == whole.text
    assert whole.usage_metadata is not None and streamed.usage_metadata is not None
    for name in ("input_tokens", "output_tokens", "total_tokens"):
        assert streamed.usage_metadata[name] == whole.usage_metadata[name]


def test_a_conversation_that_the_server_keeps(server: dict[str, Any]) -> None:
    model = ChatOpenAI(**server, temperature=0, max_tokens=60, use_previous_response_id=True)
    first = model.invoke([question := HumanMessage("What is the capital of France?")])
    assert first.response_metadata["id"].startswith("resp_")
    second = model.invoke([question, first, HumanMessage("And of Italy?")])
    whole = ChatOpenAI(**server, temperature=0, max_tokens=60, use_responses_api=True)
    assert second.text == whole.invoke([question, first, HumanMessage("And of Italy?")]).text
    assert second.usage_metadata["input_tokens"] > first.usage_metadata["input_tokens"] + 5


TEXTS = ["The lift is slow.", "A cat.", "Paris is the capital of France. " * 40]


class DemoEncoding:
    """The demo model's tokenizer, in place of one of OpenAI's, which tiktoken downloads."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer.from_file(str(Path(os.environ["CHAIRLIFT_SUITE_TOKENIZER"]) / "tokenizer.json"))

    def encode(self, text: str, **options: Any) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    encode_ordinary = encode

    def decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens))


def equal(first: list[float], second: list[float]) -> bool:
    return math.dist(first, second) < 1e-3


def test_embeddings_of_texts(server: dict[str, Any]) -> None:
    model = OpenAIEmbeddings(**server, check_embedding_ctx_length=False)
    vectors = model.embed_documents(TEXTS)
    assert len(vectors) == len(TEXTS) and all(abs(math.hypot(*vector) - 1) < 1e-3 for vector in vectors)
    assert equal(model.embed_query(TEXTS[1]), vectors[1]) and not equal(vectors[0], vectors[1])
    short = OpenAIEmbeddings(**server, check_embedding_ctx_length=False, dimensions=8)
    assert len(short.embed_query(TEXTS[0])) == 8


async def test_embeddings_of_token_ids(server: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With check_embedding_ctx_length, its default, the client sends token ids, and long texts in pieces."""
    encoding = DemoEncoding()
    monkeypatch.setattr(tiktoken, "encoding_for_model", lambda name: encoding)
    texts = OpenAIEmbeddings(**server, check_embedding_ctx_length=False)
    model = OpenAIEmbeddings(**server)
    expected = texts.embed_documents(TEXTS)
    assert all(map(equal, model.embed_documents(TEXTS), expected))
    assert all(map(equal, await model.aembed_documents(TEXTS), expected))
    pieces = OpenAIEmbeddings(**server, embedding_ctx_length=64).embed_documents(TEXTS)
    assert equal(pieces[0], expected[0]) and equal(pieces[1], expected[1])
    assert abs(math.hypot(*pieces[2]) - 1) < 1e-3 and not equal(pieces[2], expected[2])
