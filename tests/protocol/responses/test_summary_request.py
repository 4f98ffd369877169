"""summary_body, text_of, cut_off_error: what the model is asked for a summary, and what is read of its answer."""

from chairlift.protocol.responses.summary_request import SUMMARY_REQUEST, cut_off_error, summary_body, text_of


def test_the_body_has_what_applies_to_a_summary() -> None:
    chat = {
        "model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [{}], "tool_choice": "required",
        "response_format": {"type": "json_object"}, "regex": "a", "logprobs": True, "stop": ["x"], "seed": 3,
        "max_completion_tokens": 9, "reasoning_effort": "low", "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert summary_body(chat) == {
        "model": "m", "messages": [{"role": "user", "content": "Hi"}, {"role": "user", "content": SUMMARY_REQUEST}],
        "seed": 3, "max_completion_tokens": 9, "reasoning_effort": "low", "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert len(chat["messages"]) == 1  # type: ignore[arg-type]


def test_the_text_is_that_of_messages() -> None:
    parts = [{"text": " a"}, {"text": "b \n"}]
    assert text_of([{"type": "reasoning", "content": [{"text": "x"}]}, {"type": "message", "content": parts}]) == "ab"
    assert text_of([{"type": "function_call", "arguments": "{}"}]) == ""


def test_the_error_names_the_limit_that_has_cut_it_off() -> None:
    assert cut_off_error({"max_completion_tokens": 3}, 3).details["param"] == "max_output_tokens"
    assert cut_off_error({}, 3).details["param"] == "input"
