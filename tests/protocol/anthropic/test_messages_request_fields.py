"""MESSAGES and COUNT_TOKENS: every field of the published request types is declared, and messages have a schema."""

import typing

import jsonschema
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsBase, MessageCreateParamsStreaming

from chairlift.protocol.anthropic.messages_request_fields import COUNT_TOKENS, EFFORTS, MESSAGES, SAME_FIELDS
from chairlift.protocol.openapi import body_schema
from chairlift.protocol.request_fields import CHAT, REASONING_EFFORTS, Effect
from support_shares import for_each

BODY = {"model": "m", "max_tokens": 5}
CALL = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}


def test_every_published_field_is_declared() -> None:
    assert set(typing.get_type_hints(MessageCreateParamsBase)) - MESSAGES.keys() == set()
    assert set(typing.get_type_hints(MessageCreateParamsStreaming)) - MESSAGES.keys() == set()
    assert set(typing.get_type_hints(MessageCountTokensParams)) - COUNT_TOKENS.keys() == set()
    assert MESSAGES.keys() == COUNT_TOKENS.keys()


def test_equal_fields_are_those_of_chat_completions() -> None:
    assert all(MESSAGES[name] is CHAT[name] for name in SAME_FIELDS)
    assert not any(MESSAGES[name].effect is Effect.REFUSED for name in SAME_FIELDS)
    assert set(EFFORTS) <= set(REASONING_EFFORTS)


@for_each(("messages", "is_valid"), [
    ([{"role": "user", "content": "Hi"}], True), ([{"role": "system", "content": "Hi"}], True), ([], False), (7, False),
    ([{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]}], True),
    ([{"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Hm", "signature": "x"}, {"type": "redacted_thinking", "data": "x"}, CALL,
      ]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1"},
                                       {"type": "tool_result", "tool_use_id": "t", "is_error": True}]}], True),
    ([{"role": "user", "content": [CALL]}], False),
    ([{"role": "assistant", "content": [{**CALL, "input": 7}]}], False),
    ([{"role": "user", "content": [{"type": "image", "source": {}}]}], False),
    ([{"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "x"}}]}], True),
    ([{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "data": "x"}}]}], False),
    ([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [
        {"type": "search_result", "content": [{"type": "text", "text": "x"}]},
        {"type": "tool_reference", "tool_name": "x"}]}]}], True),
    ([{"role": "tool", "content": "Hi"}], False),
])  # fmt: skip
def test_the_schema_of_messages(messages: object, is_valid: bool) -> None:
    validator = jsonschema.Draft202012Validator(body_schema(MESSAGES, ()))
    assert validator.is_valid({**BODY, "messages": messages}) == is_valid
