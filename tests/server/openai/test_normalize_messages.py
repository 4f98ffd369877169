"""normalize_messages: what clients send back of earlier answers is taken, and keys without effect are named."""

from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from chairlift.core.errors import InvalidRequest
from chairlift.server.openai.normalize_messages import MAX_NAMED_KEYS, normalize_messages
from chairlift.text.chat_template import checked_messages
from support_server import CHAT, open_server, run
from support_services import fake_service
from support_shares import for_each

USER = {"role": "user", "content": "Hello."}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def normalized(message: dict[str, Any], template: str = "") -> Any:
    before = repr(message)
    [result], ignored = normalize_messages([message], template)
    assert repr(message) == before, "the request is not changed"
    assert ignored == ()
    return result


def answer(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", **fields}


@for_each(
    ("fields", "expected"),
    [
        ({}, {"content": ""}),
        ({"content": None}, {"content": ""}),
        ({"content": ""}, {"content": ""}),
        ({"content": []}, {"content": ""}),
        ({"content": None, "tool_calls": []}, {"content": "", "tool_calls": []}),
        ({"content": None, "tool_calls": [CALL]}, {"content": None, "tool_calls": [CALL]}),
        ({"content": None, "function_call": {"name": "f"}}, {"content": None, "function_call": {"name": "f"}}),
        (
            {"content": "Yes.", "refusal": None, "audio": None, "function_call": None, "tool_calls": None},
            {"content": "Yes."},
        ),
        ({"content": "Yes.", "annotations": [{"type": "url_citation"}], "refusal": ""}, {"content": "Yes."}),
        ({"content": None, "refusal": "I cannot."}, {"content": "I cannot."}),
        ({"content": "", "refusal": "I cannot."}, {"content": "I cannot."}),
        ({"content": "Yes.", "refusal": "I cannot."}, {"content": "Yes."}),
        ({"reasoning": "Well."}, {"content": "", "reasoning": "Well.", "reasoning_content": "Well."}),
        ({"content": "Yes.", "thinking": "Hm."}, {"content": "Yes.", "thinking": "Hm.", "reasoning_content": "Hm."}),
        ({"reasoning_content": "Well."}, {"content": "", "reasoning_content": "Well."}),
        (
            {"content": [{"type": "thinking", "thinking": "A", "signature": "s"}, {"type": "reasoning", "text": "B"},
                         {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "Yes."}]},
            {"content": [{"type": "text", "text": "Yes."}], "reasoning_content": "A\nB"},
        ),
        ({"content": [{"type": "thinking", "thinking": "A"}]}, {"content": "", "reasoning_content": "A"}),
        (
            {"content": [{"type": "output_text", "text": "Yes.", "annotations": []},
                         {"type": "refusal", "refusal": "No."}]},
            {"content": [{"type": "text", "text": "Yes."}, {"type": "text", "text": "No."}]},
        ),
    ],
)  # fmt: skip
def test_an_answer_that_is_sent_back(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    result = normalized(answer(**fields))
    assert result == answer(**expected)
    checked_messages([result])


def test_parts_of_the_other_roles() -> None:
    content = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]
    for role in ("user", "system", "developer", "tool"):
        [message] = checked_messages([normalized({"role": role, "content": content, "tool_call_id": "a"})])
        assert message["content"] == "a\nb"
    for part in (
        {"type": "thinking", "thinking": "a"},
        {"type": "image_url"},
        {"type": ["text"]},
        {"text": "a"},
        5,
        None,
    ):
        with pytest.raises(InvalidRequest, match=r"messages\[0\].content\[0\] must be a part of type 'text'"):
            checked_messages([normalized({"role": "user", "content": [part]})])


def test_a_part_that_is_null_is_no_reasoning() -> None:
    with pytest.raises(InvalidRequest, match=r"content\[0\] must be a part of type 'text', got 'NoneType'"):
        checked_messages([normalized(answer(content=[None]))])


def test_a_refusal_is_text() -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[1\].refusal must be a string or null, got list"):
        normalize_messages([USER, answer(refusal=["no"])])


def test_a_content_part_that_is_null_is_rejected_for_every_role() -> None:
    for role in ("assistant", "user"):
        with pytest.raises(InvalidRequest, match=r"messages\[0\].content\[0\] must be a part of type 'text'"):
            checked_messages([normalized({"role": role, "content": [None]})])


def test_only_an_answer_may_have_no_content() -> None:
    for role in ("user", "system", "tool"):
        with pytest.raises(InvalidRequest, match=r"messages\[0\].content is missing"):
            checked_messages([normalized({"role": role, "content": None, "tool_call_id": "a"})])


def test_keys_that_nothing_reads_are_named_once() -> None:
    messages: list[Any] = [
        {**USER, "cache_control": {}, "tool_plan": "x", "timestamp": 5, "weight": None}, {**USER, "timestamp": 6},
        answer(content="Yes.", audio={"id": "audio_1"}, reasoning=[{"text": "A"}]), "no message",
    ]  # fmt: skip
    result, ignored = normalize_messages(messages, "{{ message.tool_plan }}")
    assert ignored == ("messages.cache_control", "messages.timestamp", "messages.audio", "messages.reasoning")
    assert result[0]["tool_plan"] == "x", "this template reads it"
    assert "reasoning" not in result[2] and result[3] == "no message"
    many = [{**USER, f"key{number}": 1} for number in range(1000)]
    assert len(normalize_messages(many)[1]) == MAX_NAMED_KEYS


def test_answers_of_this_server_can_be_sent_back_in_every_form_of_the_client() -> None:
    async def scenario() -> None:
        async with open_server(fake_service()) as server:
            body = {"model": "fake", "messages": [USER], "max_tokens": 3, "seed": 1}
            completion = ChatCompletion.model_validate((await server.http.post(CHAT, json=body)).json())
            message = completion.choices[0].message
            for form in (message.model_dump(), message.model_dump(exclude_none=True), message.to_dict()):
                following = {**body, "messages": [USER, form, USER]}
                response = await server.http.post(CHAT, json=following)
                assert response.status_code == 200, response.text
                assert "x-ignored-parameters" not in response.headers

    run(scenario())


def test_keys_without_effect_are_named_in_the_response() -> None:
    async def scenario() -> str:
        async with open_server(fake_service()) as server:
            body = {"model": "fake", "messages": [{**USER, "cache_control": {"type": "ephemeral"}}], "max_tokens": 3}
            return str((await server.http.post(CHAT, json=body)).headers["x-ignored-parameters"])

    assert run(scenario()) == "messages.cache_control"
