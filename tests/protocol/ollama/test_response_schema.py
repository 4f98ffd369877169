"""Schemas of responses: what the writers build is valid, and what is not of the form is not."""

import jsonschema
import pytest

from chairlift.protocol.ollama.model_list import running_models, shown_model, tags
from chairlift.protocol.ollama.output import AnswerWriter
from chairlift.protocol.ollama.request import OllamaRequest
from chairlift.protocol.ollama.response_schema import ANSWER, ERROR, MESSAGE_ANSWER, MODEL_LIST, RUNNING, SHOWN
from chairlift.protocol.translation.base import FieldNames, Json

REQUEST = OllamaRequest(body={}, ignored=(), names=FieldNames(), model="m", load_reason="load")
CARD = {"id": "m", "created": 7, "max_model_len": 9}
MESSAGE, TEXT = AnswerWriter(REQUEST, is_chat=True), AnswerWriter(REQUEST, is_chat=False)
WHOLE = {"choices": [{"finish_reason": "stop", "message": {"content": "a", "reasoning_content": "b"}}], "usage": {}}


@pytest.mark.parametrize(("schema", "body"), [
    (MESSAGE_ANSWER, MESSAGE.loaded()), (MESSAGE_ANSWER, MESSAGE.whole(WHOLE, 0.0)), (ANSWER, TEXT.whole(WHOLE, 0.0)),
    (MODEL_LIST, tags([CARD])), (RUNNING, running_models([CARD])), (SHOWN, shown_model(CARD)),
    (ERROR, {"error": "x must be 1"}),
])  # fmt: skip
def test_what_is_built_is_valid(schema: Json, body: Json) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(body)
    assert not validator.is_valid({}) and not validator.is_valid({"error": {"message": "x"}})
