"""read_chat and read_completion: a bad value is rejected with an error that names its field."""

from collections.abc import Mapping
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.core.sampling_params import MAX_LOGIT_BIAS, MAX_TOKENS
from chairlift.core.structured_output import MAX_STRUCTURED_CHARS
from chairlift.protocol.request_fields import CHAT, COMPLETION, MAX_MESSAGES, MAX_PROMPTS, MAX_SALT_CHARS, Effect
from chairlift.server.openai.chat_request import read_chat
from chairlift.server.openai.completion_request import MAX_TOTAL_CHOICES, read_completion
from chairlift.text.tool_formats.json_calls import HERMES
from support_request_bodies import (
    CHAT_BODY,
    COMPLETION_BODY,
    TOOL,
    chat,
    completion,
    nested,
    rejection_message,
    schema_form,
)
from support_shares import for_each

# Values that both routes reject: the case in the HTTP contract, the field, its values.
BOTH: list[tuple[int, str, list[Any]]] = [
    (22, "model", [5, [], {}, True, "m" * 1001]),
    (31, "max_tokens", [-2, 2**31, "5", 1.5, True, [1], 2**64 - 1]),
    (31, "min_tokens", [-1, "5", 1.5]),
    (32, "n", [0, -1, 129, 10**9, "2", 1.5, True]),
    (34, "top_p", [-1, 1.1, "1", True]),
    (34, "top_k", [-2, 1.5, "5", 2**31]),
    (34, "min_p", [-0.1, 2, "0"]),
    (34, "typical_p", [0, 1.1]),
    (34, "repetition_penalty", [0, 10.1, -1]),
    (35, "temperature", [-0.1, 2.1, "1", True, [1]]),
    (36, "presence_penalty", [-2.1, 2.1, "0"]),
    (36, "frequency_penalty", [-2.1, 2.1, {}]),
    (38, "logit_bias", [{str(token): 1 for token in range(10_000)}, {"abc": 1}, {"": 1}, {"-1": 1}, {"+1": 1},
                        {"1.0": 1}, {"²": 1}, {"9" * 11: 1}, {"9999999999": 1}, {"1": 101}, {"1": -101}, {"1": "5"},
                        {"1": None}, [], "x", 5]),
    (40, "stop", [["a"] * 65, ["a" * 1000] * 17, "", [""], "x" * 2**20, 5, [5], {"a": 1}, [["a"]], [None]]),
    (41, "stop_token_ids", [[-1], [2**31], ["a"], [1.5], [True], "a", {}, [0] * 257]),
    (41, "allowed_token_ids", [[-1], ["a"], {}]),
    (42, "seed", [2**63, 2**64 - 1, "1", 1.5, True]),
    (43, "stream", ["yes", 1, 0, [], {}]),
    (44, "response_format", ["json", [], 5, True, schema_form({"x-guidance": {}}), schema_form(nested(71))]),
    (44, "response_format.type", [{}, {"type": "banana"}, {"type": None}, {"type": ["text"]}, {"type": 5}]),
    (44, "response_format.json_schema", [{"type": "json_schema"}, schema_form(5), schema_form("{}"), schema_form(True),
                                         {"type": "json_schema", "json_schema": []}]),
    (44, "regex", ["", 5, ["a"], "(" * 65, "x" * (MAX_STRUCTURED_CHARS + 1)]),
    (44, "grammar", ["", 5, {}, "[" * 30_000]),
    (44, "choice", ["", [], [""], [5], 5, {"a": 1}, ["x"] * 40_000, ["x" * 200_000] * 2]),
    (50, "chat_template", ["{% for x in range(10**9) %}{% endfor %}", {}, 0, ""]),
    (52, "cache_salt", ["x" * 10**7, 5, "", [], True]),
    (53, "user", [5, [], {"a": 1}, True]),
    (54, "priority", [-1, 2**31, 2**63, 1.5, "1", True]),
    (54, "timeout", [0, -1, 86_401, "5", True, [5]]),
    (26, "prompt_logprobs", [0, 5, True]),
    (26, "return_token_ids", ["yes", 1]),
    (26, "resume", [5, "x", [5], [["a"]], [[-1]], [[1.5]], [[2**31]], {"a": [1]}, [[True]]]),
    (26, "ignore_eos", ["yes", 0]),
    (26, "skip_special_tokens", [1, "no"]),
    (26, "include_stop_str_in_output", [1]),
    (26, "bad_words", [[""], [5], 5, {"a": 1}]),
    (26, "logits_processors", [5, [5], ["p"] * 17, {"p": []}, {"p": "{bad"}, [["p", "{bad"]], [["p", 5]]]),
]  # fmt: skip


@pytest.mark.parametrize("parse", [chat, completion])
@pytest.mark.parametrize(("case", "name", "values"), BOTH, ids=[f"{case}-{name}" for case, name, _ in BOTH])
def test_a_bad_value_is_refused_by_the_name_of_its_field(parse: Any, case: int, name: str, values: list[Any]) -> None:
    for value in values:
        assert rejection_message(parse, name, **{name.partition(".")[0]: value}), value


CHAT_ONLY: list[tuple[int, str, list[dict[str, Any]]]] = [
    (50, "chat_template_kwargs", [{"chat_template_kwargs": value} for value in (
        {"tokenize": False}, {"chat_template": "x"}, {"messages": []}, {"bos_token": "x"}, {"eos_token": 5},
        {"add_generation_prompt": True}, {"self": 1}, {"x": "y" * 65_536}, {str(i): 0 for i in range(65)}, [], 5, "x",
    )]),
    (50, "reasoning_effort", [{"reasoning_effort": value} for value in ("off", "", 5, True, ["low"])]),
    (50, "continue_final_message", [{"continue_final_message": value} for value in ("yes", 1)]),
    (50, "continue_final_message", [{"continue_final_message": True, "add_generation_prompt": True}]),
    (50, "add_generation_prompt", [{"add_generation_prompt": value} for value in ("yes", 1)]),
    (50, "documents", [{"documents": value} for value in ({}, "x", [{}] * 1025)]),
    (50, "documents[1]", [{"documents": [{}, "x"]}]),
    (50, "include_reasoning", [{"include_reasoning": value} for value in ("yes", 1)]),
    (23, "messages", [{"messages": value} for value in (None, [], "x", 5, {}, {"0": {}}, [{}] * (MAX_MESSAGES + 1))]),
    (31, "max_tokens", [{"max_tokens": 0}]),
    (31, "max_completion_tokens", [{"max_completion_tokens": value} for value in (0, -2, "5", 1.5, 2**31, True)]),
    (37, "logprobs", [{"logprobs": value} for value in (5, 0, "yes", [])]),
    (37, "top_logprobs", [{"logprobs": True, "top_logprobs": value} for value in (21, -1, 100_000, "5", 1.5, True)]),
    (37, "top_logprobs", [{"top_logprobs": 5}, {"logprobs": False, "top_logprobs": 1}]),
    (26, "modalities", [{"modalities": value} for value in (["audio"], ["text", "audio"], "audio", 5, [["text"]])]),
    (24, "prediction", [{"prediction": value} for value in ("x", [], 5, True)]),
    (24, "prediction.type", [{"prediction": value} for value in ({}, {"type": "text", "content": ""}, {"type": []})]),
    (24, "prediction.content", [{"prediction": {"type": "content", "content": value}} for value in (None, 5, {})]),
    (24, "prediction.content", [{"prediction": {"type": "content"}}]),
    (24, "prediction.content[1]", [
        {"prediction": {"type": "content", "content": ["x", value]}} for value in (5, None, {"type": "image_url"})
    ]),
    (24, "prediction.content[0].text", [{"prediction": {"type": "content", "content": [{"type": "text"}]}}]),
    (26, "functions", [{"functions": [{"name": "f"}]}, {"functions": {}}]),
    (26, "function_call", [{"function_call": "f"}, {"function_call": {"name": "f"}}]),
    (47, "tools", [{"tools": [TOOL] * 129}, {"tools": {}}, {"tools": "f"}]),
    (47, "tool_choice", [{"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
                         {"tool_choice": "required"}, {"tools": [], "tool_choice": "required"},
                         {"tools": [TOOL], "tool_choice": "required", "response_format": {"type": "json_object"}},
                         {"tools": [TOOL], "tool_choice": "required", "regex": "a"}]),
    (48, "messages[0].tool_call_id", [{"messages": [{"role": "tool", "content": "5", "tool_call_id": "c"}]}]),
]  # fmt: skip


@for_each(("case", "param", "bodies"), CHAT_ONLY)
def test_a_bad_value_of_a_chat_is_refused_by_name(case: int, param: str, bodies: list[dict[str, Any]]) -> None:
    for body in bodies:
        assert rejection_message(chat, param, **body), body


COMPLETION_ONLY: list[tuple[int, str, list[dict[str, Any]]]] = [
    (50, "chat_template_kwargs", [{"chat_template_kwargs": value} for value in ({"tokenize": False}, {}, [])]),
    (26, "prompt", [{"prompt": value} for value in (None, [], [""], ["a", ""], [[]], [[1], []], {}, 5, True)]),
    (27, "prompt", [{"prompt": value} for value in (
        [-1], [2**31], [2**63], [1.5], [True], [1, "a"], ["a", 1], [1, [1]], [[1], "a"], [["a"]], [[-1]], [[1.5]],
        [[2**64 - 1]], [None], [[None]], [1, True],
    )]),
    (28, "prompt", [{"prompt": ["a"] * 10_000}, {"prompt": [[1]] * (MAX_PROMPTS + 1)}]),
    (28, "n", [{"prompt": ["a"] * 128, "n": 2}, {"prompt": ["a", "b"], "n": 65}, {"prompt": ["a"] * 2, "best_of": 65}]),
    (31, "max_tokens", [{"max_tokens": 0}, {"max_tokens": 0, "echo": False}, {"max_tokens": 0, "logprobs": 1}]),
    (31, "min_tokens", [{"max_tokens": 5, "min_tokens": 6}]),
    (33, "best_of", [{"n": 3, "best_of": 2}, {"best_of": 2, "stream": True}, {"best_of": 1, "stream": True},
                     {"best_of": 0}, {"best_of": 129}, {"best_of": "2"}]),
    (37, "logprobs", [{"logprobs": value} for value in (21, 100_000, -1, "5", 1.5, True)]),
    (26, "echo", [{"echo": "yes"}, {"echo": 1}]),
    (26, "suffix", [{"suffix": "x"}, {"suffix": 0}]),
    (26, "resume", [{"prompt": ["a", "b"], "resume": [[1], [2], [3]]}]),
]  # fmt: skip


@for_each(("case", "param", "bodies"), COMPLETION_ONLY)
def test_a_bad_value_of_a_completion_is_refused_by_name(case: int, param: str, bodies: list[dict[str, Any]]) -> None:
    for body in bodies:
        assert rejection_message(completion, param, **body), body


@for_each(
    ("parse", "body", "numbers"),
    [
        (completion, {"prompt": ["a"] * 10_000}, ("10000", str(MAX_PROMPTS))),
        (completion, {"prompt": ["a", "b"], "n": 65}, ("130", str(MAX_TOTAL_CHOICES))),
        (completion, {"stop": ["a"] * 65}, ("65", "64")),
        (completion, {"max_tokens": -2}, ("-2", str(MAX_TOKENS))),
        (chat, {"messages": [{}] * 9000}, ("9000", str(MAX_MESSAGES))),
        (chat, {"logit_bias": {str(token): 1 for token in range(2000)}}, ("2000", str(MAX_LOGIT_BIAS))),
        (chat, {"cache_salt": "x" * 129}, ("129", str(MAX_SALT_CHARS))),
        (chat, {"tools": [TOOL] * 129}, ("129", "128")),
    ],
)
def test_a_sentence_of_a_bound_has_both_numbers(parse: Any, body: dict[str, Any], numbers: tuple[str, str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**body)
    assert all(number in caught.value.message for number in numbers), caught.value.message


@pytest.mark.parametrize("parse", [chat, completion])
def test_what_is_needed_and_not_there_is_named(parse: Any) -> None:
    name = "messages" if parse is chat else "prompt"
    body = {**CHAT_BODY, **COMPLETION_BODY}
    del body[name]
    with pytest.raises(InvalidRequest) as caught:
        read_chat(body, None) if parse is chat else read_completion(body)
    assert (caught.value.message, caught.value.details["param"]) == (f"{name} is missing", name)


@pytest.mark.parametrize("model", [{}, {"model": None}, {"model": ""}])
def test_a_model_may_be_absent(model: dict[str, Any]) -> None:
    others = {name: value for name, value in {**CHAT_BODY, **COMPLETION_BODY}.items() if name != "model"}
    assert read_chat({**others, **model}, HERMES).model == read_completion({**others, **model}).model == ""


@for_each("value", [1, 0, "yes", "", [], {}])
def test_stream_options_are_true_or_false(value: Any) -> None:
    for stream in (True, False):
        for name in ("include_usage", "continuous_usage_stats"):
            assert rejection_message(chat, f"stream_options.{name}", stream=stream, stream_options={name: value})


@pytest.mark.parametrize("value", [[], 5, "x", True])
def test_stream_options_are_an_object(value: Any) -> None:
    for stream in (True, False):
        assert rejection_message(chat, "stream_options", stream=stream, stream_options=value)


@pytest.mark.parametrize("value", [0, "5", 1.5, -2])
def test_the_older_name_is_checked_where_the_newer_one_wins(value: Any) -> None:
    assert rejection_message(chat, "max_tokens", max_tokens=value, max_completion_tokens=5)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"regex": "a", "grammar": "b"}, "grammar"),
        ({"choice": ["a"], "regex": "a"}, "choice"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_there_is_one_structure_at_most(body: dict[str, Any], param: str) -> None:
    message = rejection_message(chat, param, **body)
    assert all(name in message for name in body)


@pytest.mark.parametrize(("table", "parse"), [(CHAT, chat), (COMPLETION, completion)], ids=["chat", "completion"])
def test_what_cannot_be_done_is_refused_and_says_what_can(table: Mapping[str, Any], parse: Any) -> None:
    for name, field in table.items():
        if field.effect is Effect.REFUSED:
            assert field.help in rejection_message(parse, name, **{name: "x"})
