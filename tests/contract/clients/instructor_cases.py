"""instructor in its modes, with retries, partial objects and lists."""

from typing import Any

import instructor
import openai
import pytest
from instructor.core.exceptions import InstructorRetryException
from pydantic import BaseModel

MODES = [
    instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA,
    instructor.Mode.MD_JSON,
]  # fmt: skip


def wrapped(url: str, mode: instructor.Mode, kind: type = openai.OpenAI) -> Any:
    """Return instructor's client."""
    return instructor.from_openai(kind(base_url=url, api_key="none", max_retries=0), mode=mode)


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("mode", MODES)
def test_an_object(scripted_url: str, city_class: type[BaseModel], mode: instructor.Mode) -> None:
    city, completion = wrapped(scripted_url, mode).chat.completions.create_with_completion(
        model="scripted", response_model=city_class, messages=asked("Describe Paris"), max_retries=0
    )
    assert isinstance(city, city_class) and completion.usage.completion_tokens > 0
    assert city.model_dump() == {"name": "Paris", "population": 2_100_000, "is_capital": True}


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA])
def test_an_object_of_the_demo_model(url: str, mode: instructor.Mode) -> None:
    class Answer(BaseModel, extra="forbid"):  # without it, the schema allows more properties
        is_capital: bool
        is_large: bool

    answer = wrapped(url, mode).chat.completions.create(
        model="chairlift:demo", response_model=Answer, messages=asked("Is Paris the capital of France?"),
        temperature=0, max_tokens=200, max_retries=0,
    )  # fmt: skip
    assert isinstance(answer, Answer)


@pytest.mark.parametrize("mode", [instructor.Mode.JSON, instructor.Mode.MD_JSON])
def test_an_invalid_object_is_asked_for_again(
    scripted_url: str, city_class: type[BaseModel], mode: instructor.Mode
) -> None:
    client = wrapped(scripted_url, mode)
    attempts: list[Any] = []
    client.on("completion:response", attempts.append)
    city = client.chat.completions.create(
        model="scripted", response_model=city_class, messages=asked("Describe Rome"), max_retries=2
    )
    assert city.model_dump() == {"name": "Rome", "population": 2_800_000, "is_capital": True} and len(attempts) == 2
    with pytest.raises(InstructorRetryException):
        client.chat.completions.create(
            model="scripted", response_model=city_class, messages=asked("Describe Rome"), max_retries=0
        )


@pytest.mark.parametrize("mode", [instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA])
def test_partial_objects(scripted_url: str, city_class: type[BaseModel], mode: instructor.Mode) -> None:
    parts = list(wrapped(scripted_url, mode).chat.completions.create_partial(
        model="scripted", response_model=city_class, messages=asked("Describe Paris")
    ))  # fmt: skip
    assert len(parts) > 1
    assert parts[-1].model_dump() == {"name": "Paris", "population": 2_100_000, "is_capital": True}


@pytest.mark.parametrize("mode", [instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA])
def test_a_stream_of_objects(scripted_url: str, city_class: type[BaseModel], mode: instructor.Mode) -> None:
    cities = list(wrapped(scripted_url, mode).chat.completions.create_iterable(
        model="scripted", response_model=city_class, messages=asked("List two cities")
    ))  # fmt: skip
    assert [city.name for city in cities] == ["Paris", "Rome"]


async def test_an_asynchronous_client(scripted_url: str, city_class: type[BaseModel]) -> None:
    client = wrapped(scripted_url, instructor.Mode.JSON_SCHEMA, openai.AsyncOpenAI)
    city = await client.chat.completions.create(
        model="scripted", response_model=city_class, messages=asked("Describe Paris")
    )
    assert city.name == "Paris"
