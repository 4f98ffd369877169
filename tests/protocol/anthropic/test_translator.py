"""MessagesTranslator: one request, its message and its stream."""

from chairlift.protocol.anthropic.translator import MessagesTranslator
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
