"""MessagesTranslator: one request, its message and its stream."""

import pytest

from chairlift.protocol.anthropic.translator import CountTokensTranslator, MessagesTranslator
from chairlift.protocol.translation.base import EVENT_STREAM, ClientRequest

BODY = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}], "stop_sequences": ["END"]}


def test_a_request_is_a_chat_completion() -> None:
    translator = MessagesTranslator()
    translation = translator.translate({**BODY, "unknown": 1}, ClientRequest("tenant", "r"))
    assert translator.inner_path == "/v1/chat/completions" and translation.stream_type == EVENT_STREAM
    assert translation.body["stop"] == ["END"] and translation.ignored == ("unknown",)
    choice = {"message": {"content": "a"}, "finish_reason": "stop", "stop_reason": "END"}
    message = translation.response({"model": "alias", "choices": [choice], "usage": None})
    assert message["model"] == "alias" and message["stop_sequence"] == "END"
    chunk = {"model": "alias", "choices": [{"delta": {"content": "a"}, "finish_reason": None}]}
    assert message["id"].encode() in translation.stream().chunk(chunk)


def test_a_count() -> None:
    translator = CountTokensTranslator()
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    translation = translator.translate(body, ClientRequest())
    assert translator.inner_path == "/tokenize" and translation.ignored == ("max_tokens",)
    assert translation.body == {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    assert translation.names.own("messages[0].content") == "messages[0].content"
    assert translation.response({"count": 3, "tokens": [1, 2, 3], "max_model_len": 9}) == {"input_tokens": 3}
    with pytest.raises(TypeError):
        translation.stream()
