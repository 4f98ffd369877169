"""CountTokensTranslator: a count is the number of tokens of the rendered prompt."""

import pytest

from chairlift.protocol.anthropic.count_tokens import CountTokensTranslator
from chairlift.protocol.translation.base import ClientRequest


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
