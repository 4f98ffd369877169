"""CompactionTranslator: the conversation and a request for a summary go to chat completions; the items come back."""

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest, NotFound
from chairlift.protocol.responses.compaction import CompactionTranslator
from chairlift.protocol.responses.compaction_item import compaction_item, summary_of
from chairlift.protocol.responses.input_items import SUMMARY_INTRODUCTION
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.protocol.responses.summary_request import SUMMARY_REQUEST
from chairlift.protocol.responses.translator import ResponsesTranslator
from chairlift.protocol.translation.base import ClientRequest
from support_shares import for_each

TOOL = {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read", "parameters": {}}]}
CONVERSATION: list[Any] = [
    {"role": "developer", "content": "Be brief."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Read a.txt"}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "function_call", "namespace": "files", "name": "read", "call_id": "c1", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "alpha"},
    {"type": "message", "role": "assistant", "content": [
        {"type": "output_text", "text": "It has alpha.", "annotations": []},
    ]},
    {"type": None, "role": "user", "content": "Go on"},
]  # fmt: skip
ASK = {"role": "user", "content": SUMMARY_REQUEST}


def translate(body: dict[str, Any], store: ResponseStore | None = None, tenant: str = "") -> Any:
    return CompactionTranslator(store or ResponseStore(0)).translate({"model": "m", **body}, ClientRequest(tenant))


def completion(content: str | None, reasoning: str | None = None, reason: str = "stop") -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    usage = {"prompt_tokens": 40, "completion_tokens": 10, "total_tokens": 50}
    return {"model": "m", "created": 5, "choices": [{"message": message, "finish_reason": reason}], "usage": usage}


def test_the_model_is_asked_for_a_summary_behind_the_conversation() -> None:
    translation = translate({
        "input": CONVERSATION, "instructions": "You are an agent.", "tools": [TOOL, {"type": "web_search"}],
        "tool_choice": "required", "parallel_tool_calls": True, "max_output_tokens": 9, "temperature": 0.5, "seed": 1,
        "reasoning": {"effort": "low"}, "text": {"format": {"type": "json_object"}}, "store": False, "stop": "x",
        "include": ["reasoning.encrypted_content"], "regex": "a+", "service_tier": "auto", "stream": False,
    })  # fmt: skip
    body = translation.body
    assert [message["role"] for message in body["messages"]] == [
        "system", "developer", "user", "assistant", "tool", "assistant", "user", "user",
    ]  # fmt: skip
    assert body["messages"][3]["tool_calls"][0]["function"]["name"] == "read" and body["messages"][-1] == ASK
    assert {name: value for name, value in body.items() if name != "messages"} == {
        "model": "m", "max_completion_tokens": 9, "temperature": 0.5, "seed": 1, "reasoning_effort": "low",
    }  # fmt: skip
    assert sorted(translation.ignored) == sorted([
        "include", "parallel_tool_calls", "regex", "service_tier", "stop", "store", "text", "tool_choice",
        "tools.web_search",
    ])  # fmt: skip
    assert translation.names.own("messages[4].content") == "input[4].content"
    with pytest.raises(AssertionError):
        translation.stream()


@for_each("written", [completion(" S \n"), completion("S", "hm")])
def test_messages_of_user_and_developer_stay_and_the_rest_is_a_summary(written: dict[str, Any]) -> None:
    response = translate({"input": CONVERSATION}).response(written)
    output = response.pop("output")
    assert [(item["type"], item.get("role")) for item in output] == [
        ("message", "developer"), ("message", "user"), ("message", "user"), ("compaction", None),
    ]  # fmt: skip
    texts = [item["content"] for item in output[:-1]]
    assert texts == [[{"type": "input_text", "text": text}] for text in ("Be brief.", "Read a.txt", "Go on")]
    assert all(item["status"] == "completed" and item["id"].startswith("msg_") for item in output[:-1])
    assert summary_of(output[-1]) == "S" and len({item["id"] for item in output}) == len(output)
    usage = response.pop("usage")
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (40, 10, 50)
    assert response.pop("id").startswith("resp_") and response == {"object": "response.compaction", "created_at": 5}


def test_tools_that_the_conversation_has_added_stay() -> None:
    tools = [{"type": "function", "name": "f"}]
    items = [
        {"type": "tool_search_call", "call_id": "c"},
        {"type": "tool_search_output", "call_id": "c", "tools": tools},
    ]
    added, _ = output = translate({"input": items}).response(completion("S"))["output"]
    assert added.pop("id").startswith("at_")
    assert added == {"type": "additional_tools", "role": "developer", "tools": tools}
    body = {"model": "m", "input": [*output, {"role": "user", "content": "Go"}]}
    assert len(ResponsesTranslator(ResponseStore(0)).translate(body, ClientRequest()).body["tools"]) == 1


def test_the_output_has_the_published_form_whatever_the_input_had() -> None:
    items = [
        {"role": "user", "id": None, "status": None, "content": ["a", {"type": "text", "text": "b"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": {"a": 1}},
    ]  # fmt: skip
    message, call, _ = translate({"input": items}).response(completion("S"))["output"]
    assert message.pop("id").startswith("msg_") and call.pop("id").startswith("fc_")
    texts = [{"type": "input_text", "text": text} for text in "ab"]
    assert message == {"type": "message", "role": "user", "status": "completed", "content": texts}
    assert (call["arguments"], call["status"]) == ('{"a":1}', "completed")


def test_the_result_of_a_call_may_follow_its_compaction() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = translate({"input": [{"role": "user", "content": "Hi"}, call]}).response(completion("S"))["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "compaction"]
    result = {"type": "function_call_output", "call_id": "c", "output": "x"}
    messages = translate({"input": [*output, result]}).body["messages"]
    assert [message["role"] for message in messages] == ["user", "user", "assistant", "tool", "user"]


@for_each("written", [completion(None), completion(" \n", "only thoughts")])
def test_a_conversation_stays_whole_where_the_model_writes_nothing(written: dict[str, Any]) -> None:
    output = translate({"input": CONVERSATION}).response(written)["output"]
    assert [item["type"] for item in output] == [item.get("type") or "message" for item in CONVERSATION]
    again, before = (translate({"input": items}).body["messages"] for items in (output, CONVERSATION))
    plain = [{**m, "content": [{"type": "input_text", "text": m["content"]}]} if m["role"] == "developer" else m
             for m in before]  # fmt: skip
    plain[-2]["content"] = [{"type": "input_text", "text": "Go on"}]
    assert again == plain


@for_each(("body", "param"), [({"max_output_tokens": 3}, "max_output_tokens is too small"), ({}, "input leaves 10 ")])
def test_a_summary_that_was_cut_off_replaces_nothing(body: dict[str, Any], param: str) -> None:
    for content, reasoning in (("Half a summ", None), ("", "half a thou"), ("S", "hm")):
        with pytest.raises(InvalidRequest, match=param):
            translate({"input": CONVERSATION, **body}).response(completion(content, reasoning, "length"))


def test_a_conversation_goes_on_with_its_summary_which_the_next_one_replaces() -> None:
    output = translate({"input": CONVERSATION}).response(completion("First."))["output"]
    following = [*output, {"role": "user", "content": "More"}]
    translation = translate({"input": following})
    contents = [message["content"] for message in translation.body["messages"]]
    assert contents[3:] == [SUMMARY_INTRODUCTION + "First.", "More", SUMMARY_REQUEST]
    again = translation.response(completion("Second."))["output"]
    assert [item.get("role") for item in again] == ["developer", "user", "user", "user", None]
    assert summary_of(again[-1]) == "Second." and again[0] == output[0]


def test_a_stored_conversation_is_compacted_for_its_tenant_only() -> None:
    store = ResponseStore(10**6)
    answer = {
        "id": "msg_a_0",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "B"}],
    }
    store.add("alice", {"id": "resp_a", "output": [answer]}, [{"type": "message", "role": "user", "content": "A"}])
    translation = translate({"previous_response_id": "resp_a"}, store, "alice")
    assert [message["content"] for message in translation.body["messages"]] == ["A", answer["content"], SUMMARY_REQUEST]
    output = translation.response(completion("S"))["output"]
    assert [item["type"] for item in output] == ["message", "compaction"]
    with pytest.raises(NotFound):
        translate({"previous_response_id": "resp_a"}, store, "bob")


@for_each(("body", "messages"), [
    ({"input": "Hi"}, [{"role": "user", "content": "Hi"}, ASK]),
    ({"input": [{"type": "compaction", "encrypted_content": "gAAAAABo"}, {"role": "user", "content": "Hi"}]},
     [{"role": "user", "content": "Hi"}, ASK]),
    ({"input": [compaction_item("cmp_1", "S")]}, [{"role": "user", "content": SUMMARY_INTRODUCTION + "S"}, ASK]),
])  # fmt: skip
def test_inputs(body: dict[str, Any], messages: list[Any]) -> None:
    assert translate(body).body["messages"] == messages


@for_each(("body", "param"), [
    ({}, "input"), ({"input": None}, "input"), ({"input": [], "instructions": "Be brief."}, "input"),
    ({"input": "Hi", "stream": True}, "stream"), ({"input": "Hi", "background": True}, "background"),
    ({"input": 7}, "input"), ({"input": [{"type": "robot"}]}, r"input\[0\].type"),
    ({"instructions": 7}, "instructions"),
])  # fmt: skip
def test_bad_requests(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest, match=param):
        translate(body)
