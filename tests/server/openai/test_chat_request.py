"""read_chat: fields that only chats have."""

from support_request_bodies import chat, completion

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


def test_the_newer_name_of_max_tokens_wins() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).params.max_tokens == 7
    assert chat(max_completion_tokens=7).params.max_tokens == 7
    assert chat(max_tokens=5, max_completion_tokens=None).params.max_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=-1).params.max_tokens is None
    assert completion(max_completion_tokens=7).ignored == ("max_completion_tokens",), "only chats have this field"


def test_a_prediction_is_a_text_or_its_parts() -> None:
    def prediction(content: object, **more: object) -> object:
        return chat(prediction={"type": "content", "content": content, **more}).prediction

    parts = [{"type": "text", "text": "def f():"}, "    pass"]
    assert (prediction("x"), prediction(""), prediction([]), prediction(parts)) == ("x", "", "", "def f():\n    pass")
    assert chat().prediction is None and chat(prediction=None).prediction is None
    assert chat(prediction={"type": "content", "content": "x", "a": 1, "b": None}).ignored == (
        "prediction.a", "prediction.b",
    )  # fmt: skip
    assert completion(prediction={"type": "content", "content": "x"}).ignored == ("prediction",)


def test_scores_of_a_chat() -> None:
    for body, logprobs, has_logprobs in (
        ({}, None, False),
        ({"logprobs": False}, None, False),
        ({"logprobs": False, "top_logprobs": 0}, None, False),
        ({"top_logprobs": 0}, None, False),
        ({"logprobs": True}, 0, True),
        ({"logprobs": True, "top_logprobs": 0}, 0, True),
        ({"logprobs": True, "top_logprobs": 20}, 20, True),
    ):
        request = chat(**body)
        assert (request.params.logprobs, request.logprobs) == (logprobs, has_logprobs)


def test_empty_values_of_older_fields_are_as_absent() -> None:
    assert chat(functions=[], function_call="auto") == chat(function_call="none") == chat()
    assert completion(suffix="") == completion()


def test_text_in_place_of_other_modalities_is_fine() -> None:
    assert chat(modalities=["text"]) == chat(modalities="text") == chat(modalities=[]) == chat()
