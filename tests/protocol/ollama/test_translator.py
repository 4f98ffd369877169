"""OllamaTranslator and EmbedTranslator: which route serves which request, and how responses come back."""

import json

import pytest

from chairlift.protocol.ollama.translator import (
    EmbedTranslator,
    OllamaTranslator,
    chat_translator,
    generate_translator,
    raw_translator,
)
from chairlift.protocol.translation.base import JSON_LINES, ClientRequest

COMPLETION = {
    "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    "choices": [{"finish_reason": "stop", "message": {"content": "Yes"}, "text": "Yes", "logprobs": None}],
}
BODY = {"model": "m", "prompt": "Hi", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(("translator", "inner_path", "part"), [
    (chat_translator(), "/v1/chat/completions", "message"),
    (generate_translator(), "/v1/chat/completions", "response"),
    (raw_translator(), "/v1/completions", "response"),
])  # fmt: skip
def test_each_route_has_its_own(translator: OllamaTranslator, inner_path: str, part: str) -> None:
    assert translator.inner_path == inner_path
    translation = translator.translate(BODY, ClientRequest(first_token_at=lambda: 0.0))
    assert translation.stream_type == JSON_LINES and translation.load_reason == ""
    response = translation.response(COMPLETION)
    assert response["done"] is True and part in response and response["prompt_eval_duration"] == 0
    stream = translation.stream()
    last = json.loads(stream.end())
    assert last["done"] is True and last["prompt_eval_duration"] == 0
    assert "eval_duration" not in translator.translate(BODY, ClientRequest()).response(COMPLETION)
    empty = translator.translate({"model": "m"}, ClientRequest())
    assert empty.load_reason == "load" and empty.loaded("m")["done_reason"] == "load"


def test_embeddings() -> None:
    for has_one_prompt, name in ((True, "embedding"), (False, "embeddings")):
        translator = EmbedTranslator(has_one_prompt=has_one_prompt)
        translation = translator.translate({"model": "m", "input": "a", "prompt": "a"}, ClientRequest())
        assert translator.inner_path == "/v1/embeddings" and translation.body["input"] == "a"
        assert name in translation.response({"data": [{"embedding": [1.0]}], "usage": {"prompt_tokens": 1}})
