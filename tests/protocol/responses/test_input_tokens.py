"""InputTokensTranslator: the fields that make the prompt, and nothing else, go to /tokenize."""

import pytest

from chairlift.core.errors import InvalidRequest, NotFound
from chairlift.protocol.request_fields import TOKENIZE
from chairlift.protocol.responses.input_tokens import InputTokensTranslator
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.protocol.responses.translator import ResponsesTranslator
from chairlift.protocol.translation.base import ClientRequest

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def test_the_prompt_is_counted() -> None:
    translation = InputTokensTranslator(ResponseStore(0)).translate(
        {
            "model": "m", "input": "Hi", "instructions": "Be brief.", "tools": [TOOL], "tool_choice": "required",
            "text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "low"}, "temperature": 0.5,
            "max_output_tokens": 7, "stream": True, "truncation": "auto", "chat_template_kwargs": {"a": 1},
        },
        ClientRequest(),
    )  # fmt: skip
    assert translation.body == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "required", "response_format": {"type": "json_object"}, "reasoning_effort": "low",
        "chat_template_kwargs": {"a": 1},
    }  # fmt: skip
    assert translation.body.keys() <= TOKENIZE.keys() and translation.ignored == ("truncation",)
    assert translation.names.own("messages[1].content") == "input.content"
    counted = translation.response({"count": 5, "max_model_len": 9, "tokens": [1, 2, 3, 4, 5]})
    assert counted == {"object": "response.input_tokens", "input_tokens": 5}
    with pytest.raises(AssertionError):
        translation.stream()


def test_a_constraint_of_the_output_is_counted_too_because_it_may_leave_no_room_for_tools() -> None:
    for name, value in {"regex": "a", "choice": ["a"], "ebnf": "x", "structured_outputs": {"regex": "a"}}.items():
        body = {"model": "m", "input": "Hi", "tools": [TOOL], name: value}
        translation = InputTokensTranslator(ResponseStore(0)).translate(body, ClientRequest())
        assert translation.body[name] == value and not translation.ignored


def test_a_stored_conversation_is_counted_for_its_tenant_only() -> None:
    store = ResponseStore(10**6)
    item = {"type": "message", "role": "user", "content": "Hi"}
    store.add("alice", {"id": "resp_a", "output": []}, [item])
    translator, body = InputTokensTranslator(store), {"model": "m", "input": "More", "previous_response_id": "resp_a"}
    messages = translator.translate(body, ClientRequest("alice")).body["messages"]
    assert [message["content"] for message in messages] == ["Hi", "More"]
    with pytest.raises(NotFound):
        translator.translate(body, ClientRequest("bob"))
    with pytest.raises(InvalidRequest, match="input"):
        translator.translate({"model": "m"}, ClientRequest())


def test_the_prompt_of_a_summary_is_counted_where_a_trigger_asks_for_one() -> None:
    body = {"model": "m", "input": [{"role": "user", "content": "Hi"}, {"type": "compaction_trigger"}], "tools": [TOOL]}
    translation = InputTokensTranslator(ResponseStore(0)).translate(body, ClientRequest())
    assert translation.body == ResponsesTranslator(ResponseStore(0)).translate(body, ClientRequest()).body
    assert len(translation.body["messages"]) == 2 and translation.ignored == ("tools",)
