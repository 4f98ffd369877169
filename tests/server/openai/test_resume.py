"""`resume` over HTTP: a stream that is cut after any chunk goes on, and the client has what an uncut one brings."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from chairlift.llm.build import build_service
from chairlift.llm.text_service import TextService
from support_resume import SharedClient, check_every_cut, check_every_whole_response, reply_service, split_outputs
from support_server import CHAT, COMPLETIONS, open_server, run

SHARED: dict[str, Any] = {"model": "fake", "max_tokens": 10, "temperature": 0.8, "seed": 3}
HELLO = [{"role": "user", "content": "Hello."}]
SCHEMA = {
    "type": "object", "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}}, "required": ["a", "b"],
    "additionalProperties": False,
}  # fmt: skip
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"d": {"enum": [1, 2]}}, "required": ["d"],
                       "additionalProperties": False},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def service() -> Iterator[TextService]:
    service = build_service(None, {})
    yield service
    service.client.close()


@pytest.fixture(scope="module")
def replying() -> Iterator[TextService]:
    service = reply_service()
    yield service
    service.client.close()


@pytest.fixture(autouse=True)
def _one_chunk_for_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    split_outputs(monkeypatch)


def check(service: TextService, path: str, body: dict[str, Any], *, num_choices: int = 1, **options: Any) -> Any:
    """Cut a request everywhere, streamed and not; return what its client has at the end."""
    config = {name: options.pop(name) for name in ("tool_call_parser",) if name in options}

    async def scenario() -> Any:
        async with open_server(replace(service, client=SharedClient(service.client)), **config) as server:
            result = await check_every_cut(server.http, path, body, num_choices=num_choices, **options)
            await check_every_whole_response(server.http, path, body, num_choices=num_choices)
            return result

    return run(scenario())


# -- the embedded model ------------------------------------------------------------------------------------------------


@pytest.mark.share(1)
@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0},
        {"frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
        {"min_tokens": 9},
        {"logit_bias": {"32": 3}, "top_k": 20, "top_p": 0.9},
        {"max_tokens": 30, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        {"max_tokens": 30, "regex": "(ab|cde){3}[0-9]{4}"},
        {"logprobs": True, "top_logprobs": 2},
        {"max_tokens": 40, "regex": "[a-z]{5}, [é€😀]{4}!{3}"},
    ],
    ids=["greedy", "penalties", "min_tokens", "filters", "schema", "regex", "logprobs", "characters"],
)
def test_a_chat_goes_on_after_every_token(service: TextService, more: dict[str, Any]) -> None:
    result = check(service, CHAT, {**SHARED, "messages": HELLO, **more})
    assert result[0]["delta"]["content"] and result[0]["delta"]["role"] == "assistant"


def test_two_choices_go_on_each_on_its_own(service: TextService) -> None:
    """One of them ends before the other, and its end is not delivered again."""
    body = {**SHARED, "messages": HELLO, "n": 2, "regex": "[ab]{2}|[cd]{12}", "max_tokens": 20, "logprobs": True}
    result = check(service, CHAT, {**body, "seed": 7}, num_choices=2)
    assert {len(result[index]["delta"]["content"]) for index in (0, 1)} == {2, 12}


@pytest.mark.full
@pytest.mark.parametrize("tool_call_parser", ["hermes", "llama3", "pythonic", "qwen3_coder"])
def test_a_forced_call_goes_on_and_keeps_its_id(service: TextService, tool_call_parser: str) -> None:
    body = {**SHARED, "messages": HELLO, "tools": [WEATHER], "tool_choice": "required", "max_tokens": 60}
    result = check(service, CHAT, body, tool_call_parser=tool_call_parser)
    first = result[0]["delta"]["tool_calls"][0]
    assert first["function"]["name"] == "get_weather" and first["id"].startswith("call_")


def test_each_choice_goes_on_with_its_echo_and_all_its_logprobs(service: TextService) -> None:
    body = {**SHARED, "prompt": ["Once upon", "The old cat"], "n": 2, "echo": True, "logprobs": 1, "max_tokens": 5}
    result = check(service, COMPLETIONS, {**body, "seed": 7}, num_choices=4)
    for index in range(4):
        assert "".join(result[index]["logprobs"]["tokens"]) == result[index]["text"]


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "more",
    [
        {"prompt": "Once upon"},
        {"prompt": [1, 2, 3]},
        {"prompt": "Once upon", "echo": True},
        {"prompt": "Once upon", "echo": True, "logprobs": 2},
        {"prompt": "Once upon", "logprobs": 1},
    ],
    ids=["text", "ids", "echo", "echo with logprobs", "logprobs"],
)
def test_a_completion_goes_on_after_every_token(service: TextService, more: dict[str, Any]) -> None:
    assert check(service, COMPLETIONS, {**SHARED, **more})[0]["text"]


@pytest.mark.full
def test_several_prompts_go_on_each_on_its_own(service: TextService) -> None:
    body = {**SHARED, "prompt": ["Once", "The dog", "A"], "n": 2, "max_tokens": 4}
    assert len(check(service, COMPLETIONS, body, num_choices=6)) == 8


def test_resumed_choices_are_those_of_all_prompts(service: TextService) -> None:
    async def scenario() -> Any:
        async with open_server(replace(service, client=SharedClient(service.client))) as server:
            body = {**SHARED, "prompt": ["Once", "The"], "resume": [[5], [6], [7]]}
            return await server.http.post(COMPLETIONS, json=body)

    response = run(scenario())
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "resume has tokens of 3 choices, the request has 2 of all prompts"


def test_a_ranked_request_starts_again(service: TextService) -> None:
    """Nothing of it was delivered, so a router resumes it from no tokens."""

    async def scenario() -> Any:
        async with open_server(replace(service, client=SharedClient(service.client))) as server:
            body = {**SHARED, "prompt": "Once", "best_of": 3, "n": 2}
            bodies = [body, {**body, "resume": [[], []]}, {**body, "resume": [[], [5]]}]
            return [await server.http.post(COMPLETIONS, json=each) for each in bodies]

    whole, again, rejected = run(scenario())
    assert whole.json()["choices"] == again.json()["choices"]
    assert rejected.status_code == 400 and rejected.json()["error"]["param"] == "resume"


# -- scripted replies --------------------------------------------------------------------------------------------------

HERMES_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"d": 1, "é": "€"}}\n</tool_call>'
REPLIES = {
    "hermes": "So: " + HERMES_CALL + "\n" + HERMES_CALL,
    "llama3": '{"name": "get_weather", "parameters": {"d": 2}}',
    "pythonic": "[get_weather(d=1), get_weather(d=2)]",
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=d>\n1\n</parameter>\n</function>\n</tool_call>",
}


def reply(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": [{"role": "user", "content": text}], "max_tokens": 300, "seed": 1, **more}


@pytest.mark.full
@pytest.mark.parametrize("tool_call_parser", REPLIES)
def test_calls_of_a_free_answer_go_on_within_name_and_arguments(replying: TextService, tool_call_parser: str) -> None:
    body = reply(REPLIES[tool_call_parser], tools=[WEATHER])
    result = check(replying, CHAT, body, tool_call_parser=tool_call_parser, min_chunks=20)
    calls = result[0]["delta"]["tool_calls"]
    assert result[0]["reason"] == "tool_calls" and {call["function"]["name"] for call in calls} == {"get_weather"}
    assert len({call["id"] for call in calls}) == len(calls)


@pytest.mark.full
@pytest.mark.parametrize("more", [{}, {"include_reasoning": False}, {"n": 2}])
def test_reasoning_goes_on_within_its_markers(replying: TextService, more: dict[str, Any]) -> None:
    num_choices = more.get("n", 1)
    body = reply("<think>\nA <b> é\n</think>\n\nSo </thin is 8.", **more)
    result = check(replying, CHAT, body, num_choices=num_choices, min_chunks=20)
    assert result[0]["delta"]["content"].endswith("So </thin is 8.")
    assert result[0]["delta"].get("reasoning_content") == ("A <b> é" if more.get("include_reasoning", True) else None)


@pytest.mark.full
@pytest.mark.parametrize(
    ("stop", "more", "text"),
    [
        (["stop!"], {}, "one é stap sto"),
        (["€ now"], {"include_stop_str_in_output": True}, "one é stap stostop! two € now"),
        (["never", "s!!"], {"max_tokens": 14}, "one é stap st"),
        (["three..."], {}, "one é stap stostop! two € now three"),
    ],
)
def test_stop_strings_match_across_the_cut(
    replying: TextService, stop: list[str], more: dict[str, Any], text: str
) -> None:  # fmt: skip
    result = check(replying, CHAT, reply("one é stap stostop! two € now three", stop=stop, **more))
    assert result[0]["delta"]["content"] == text
    assert result[0]["stop_reason"] == (stop[0] if stop[0] in ("stop!", "€ now") else None)


@pytest.mark.full
def test_text_that_is_held_back_until_the_end_comes_once(replying: TextService) -> None:
    for text in ("a € <tool_call>\n{", "<tool_", "<think>\nx</thi", "half \N{GRINNING FACE}"):
        result = check(replying, CHAT, reply(text, tools=[WEATHER], max_tokens=len(text.encode()) - 1), min_chunks=3)
        assert result[0]["reason"] == "length"
