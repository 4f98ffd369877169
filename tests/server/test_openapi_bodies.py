"""openapi.py: the body schemas accept and reject what the server accepts and rejects."""

from collections.abc import Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.request_fields import CHAT, COMPLETION, DETOKENIZE, TOKENIZE, Effect
from chairlift.server.openai.chat_request import read_chat
from chairlift.server.openai.completion_request import read_completion
from chairlift.server.openapi import document
from chairlift.text.tool_formats.json_calls import HERMES
from support_server import open_server, run
from support_services import fake_service

DOCUMENT = document()
CHAT_BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
COMPLETION_BODY = {"model": "m", "prompt": "x"}


def body_schema(path: str) -> dict[str, Any]:
    result: dict[str, Any] = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return result


@pytest.mark.parametrize(("path", "table"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)])
def test_every_field_is_documented(path: str, table: Mapping[str, Any]) -> None:
    schema = body_schema(path)
    assert list(schema["properties"]) == [*table]
    assert schema["required"] == [name for name, field in table.items() if field.required]
    assert schema.get("additionalProperties", True) is True, "unknown fields are listed as ignored, not rejected"
    assert all(operation["description"] for operation in schema["properties"].values())


def check_schema_and_parser(path: str, body: dict[str, Any], *, good: bool) -> None:
    """Assert that the documented schema and the parser both accept a body, or both reject it."""
    schema_accepts = Draft202012Validator(body_schema(path)).is_valid(body)
    try:
        read_chat(body, HERMES) if path == "/v1/chat/completions" else read_completion(body)
        parser_accepts = True
    except InvalidRequest:
        parser_accepts = False
    assert (schema_accepts, parser_accepts) == (good, good), body


TOOL = {"type": "function", "function": {"name": "f"}}
# For each field: valid values, and invalid ones.
BOTH_ROUTES: dict[str, tuple[list[Any], list[Any]]] = {
    "temperature": ([0, 0.5, 2, 1e-12, None], [-0.1, 2.1, "1", True, [1]]),
    "top_p": ([0, 0.1, 1, None], [-1, 1.1, "1"]),
    "top_k": ([-1, 0, 5, 2**31 - 1], [-2, 1.5, "5", 2**31]),
    "min_p": ([0, 1], [-0.1, 1.1]),
    "typical_p": ([0.5, 1], [0, 1.1]),
    "epsilon_cutoff": ([0, 1], [-0.1, 1.1]),
    "eta_cutoff": ([0, 1], [-0.1, 1.1]),
    "repetition_penalty": ([0.1, 10], [0, 10.1]),
    "presence_penalty": ([-2, 2], [-2.1, 2.1]),
    "frequency_penalty": ([-2, 2], [-2.1, 2.1]),
    "no_repeat_ngram_size": ([0, 3], [-1, 1.5]),
    "n": ([1, 128, None], [0, -1, 129, "2", True]),
    "seed": ([-(2**63), 0, 2**63 - 1], [2**63, -(2**63) - 1, "1"]),
    "max_tokens": ([1, 2**31 - 1, -1, 3.0, None], [-2, 2**31, "5", 1.5]),
    "min_tokens": ([0, 5], [-1, "5"]),
    "logit_bias": ([{}, {"5": 1.5}, {"0": -100}, {str(token): 1 for token in range(1024)}],
                   [{"a": 1}, {"-1": 1}, {"1": 101}, {"1": "1"}, [], 5, {"1" * 11: 1},
                    {str(token): 1 for token in range(1025)}]),
    "stop": (["a", ["a"], [], ["a"] * 64, None], ["", [""], ["a"] * 65, 5, [5], "x" * 1025]),
    "stop_token_ids": ([[], [0, 5], 5], [[-1], ["a"], [2**31], "a", [0] * 257, -1, True]),
    "allowed_token_ids": ([[], [0, 5], 0], [[-1], ["a"], {}, 2**31]),
    "bad_words": ([[], ["a"], "a"], [[""], [5], 5, ""]),
    "ignore_eos": ([True, False, None], [1, "yes"]),
    "skip_special_tokens": ([True, False], [0, "yes"]),
    "include_stop_str_in_output": ([True], ["yes"]),
    "logits_processors": ([[], ["p"], "p", [["p", {}]], [["p", None], "q"], {"p": {"a": 1}}, {"p": None}, {}],
                          [[5], 5, ["p"] * 17, [""], "", [["p", 1]], [["p", "x"]], [["p"]], [["p", {}, {}]], {"p": 1},
                           {"": None}]),
    "stream": ([True, False, None], ["yes", 1]),
    "response_format": ([{"type": "text"}, {"type": "json_object"}, None,
                         {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
                         {"type": "json_schema", "schema": {}}, {"type": "json_object", "schema": {}},
                         {"type": "regex", "regex": "a"}, {"type": "grammar", "grammar": "a"}],
                        [{}, {"type": "banana"}, "text", [], {"type": "json_schema"},
                         {"type": "json_schema", "json_schema": {}},
                         {"type": "json_schema", "json_schema": {"schema": 5}}, {"type": "json_schema", "schema": 5},
                         {"type": "json_object", "schema": 5}, {"type": "regex"}, {"type": "regex", "regex": ""},
                         {"type": "grammar", "regex": "a"}, {"type": "grammar", "grammar": 5}]),
    "structured_outputs": ([{"json": {}}, {"json": "{}"}, {"regex": "a", "json": None}, {"choice": ["a"]},
                            {"grammar": "a"}, {"json_object": True, "backend": "xgrammar"},
                            {"regex": "a", "disable_any_whitespace": False}, None],
                           [5, "a", [], {"json": 5}, {"regex": ""}, {"choice": []}, {"choice": ""}, {"grammar": []},
                            {"json_object": "x"}, {"regex": "a", "whitespace_pattern": "b"},
                            {"regex": "a", "disable_any_whitespace": True}, {"structural_tag": "{}"}]),
    "guided_json": ([{}, {"type": "object"}, "{}", None], [5, [], True]),
    "json_schema": ([{"type": "object"}, "{}"], [5]),
    "guided_regex": (["a+"], [5, ""]),
    "guided_choice": ([["a", "b"], "a"], [5, [], [""]]),
    "guided_grammar": (['start: "a"'], [5, ""]),
    "ebnf": (['root ::= "a"'], [5, ""]),
    "guided_decoding_backend": ([None, "xgrammar"], []),
    "length_penalty": ([1.0, 2], []),
    "spaces_between_special_tokens": ([True, False], []),
    "guided_whitespace_pattern": ([None], ["x", ""]),
    "structural_tag": ([None], ["{}", {}]),
    "use_beam_search": ([None, False], [True, 0, "x"]),
    "truncate_prompt_tokens": ([None], [5, -1]),
    "return_tokens_as_token_ids": ([None, False], [True]),
    "logprob_token_ids": ([None], [[1]]),
    "repetition_detection": ([None], [{}]),
    "thinking_token_budget": ([None], [5]),
    "regex": (["a+", None], [5, ["a"], "", "a" * 262_145]),
    "grammar": (['start: "a"'], [5, ""]),
    "choice": ([["a", "b"], "a", None], [5, [5], [], "", [""], ["a"] * 32_769]),
    "priority": ([0, 2**31 - 1], [-1, 2**31, 1.5]),
    "timeout": ([0.5, 86_400], [0, -1, 86_401, "5"]),
    "return_token_ids": ([True], ["yes"]),
    "resume": ([[], [[1, 2], []], None], [[5], [["a"]], [[-1]], [[2**31]], "x", 5]),
    "resume_fingerprint": (["", "ab12", None], [5, ["a"], "x" * 129]),
    "cache_salt": (["s", "s" * 128, None], ["", "s" * 129, 5]),
    "user": (["u", "u" * 1000, ""], [5, []]),
    "chat_template": ([None], ["x", {}]),
    "prompt_logprobs": ([None], [0, 5]),
    "model": (["m", "m" * 1000, None, ""], [5, [], "m" * 1001]),
    "made_up": ([1, None, {}], []),
}  # fmt: skip
CHAT_ONLY: dict[str, tuple[list[Any], list[Any]]] = {
    "messages": ([[{"role": "user", "content": "x"}] * 2], [[], None, "x", {}]),
    "max_tokens": ([1], [0]),
    "max_completion_tokens": ([1, -1, None], [0, -2, "5"]),
    "logprobs": ([True, False], [1, "yes"]),
    "tools": (
        [[], [TOOL], None, [{**TOOL, "type": "x"}], [{"type": "custom", "custom": {"name": "p"}}]],
        [{}, "f", [5], [{}], [TOOL] * 129, [{"type": "function"}], [{"type": "custom"}]],
    ),
    "tool_choice": (
        ["auto", "none", None],
        [
            5,
            True,
            ["auto"],
            "banana",
            {},
            {"type": "function"},
            {"type": "allowed_tools"},
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "none", "tools": [{"type": "function", "function": {}}]},
            },
        ],
    ),
    "parallel_tool_calls": ([True, False], [1, "yes"]),
    "modalities": ([["text"], [], None, "text"], [["audio"], 5, "audio", ["text"] * 9]),
    "prediction": (
        [{"type": "content", "content": text} for text in ("", "x", [], ["x"], [{"type": "text", "text": "x"}])]
        + [None],
        [
            "x",
            [],
            {},
            {"type": "content"},
            {"content": "x"},
            {"type": "text", "content": "x"},
            {"type": 5, "content": ""},
            *({"type": "content", "content": content} for content in (None, 5, {}, [5], [{"type": "text"}])),
            {"type": "content", "content": [{"type": "image_url", "text": "x"}]},
        ],
    ),
    "functions": ([None, []], [[{"name": "f"}], {}]),
    "best_of": ([None, 1], [2, 0]),
    "echo": ([None, False], [True]),
    "add_special_tokens": ([None, False], [True]),
    "function_call": ([None, "auto", "none"], ["f", {"name": "f"}]),
    "store": ([True, "x", {}], []),
    "chat_template_kwargs": (
        [{}, {"x": 1}, None],
        [1, [], {"tokenize": False}, {"messages": []}, {"bos_token": ""}, {str(i): 0 for i in range(65)}],
    ),
    "reasoning_effort": (["none", "xhigh", "max", None], ["", "off", 1]),
    "documents": ([[], [{"title": "t", "text": "x"}]], [{}, ["x"], [None]]),
    "include_reasoning": ([True, False], ["yes", 0]),
    "add_generation_prompt": ([True, False], ["yes", 0]),
    "continue_final_message": ([True, False], ["yes", 0]),
}
COMPLETION_ONLY: dict[str, tuple[list[Any], list[Any]]] = {
    "prompt": (["x", "", ["x", "y"], [1, 2], [[1], [2, 3]]],
               [None, [], [[]], 5, {}, [-1], ["a", 1], [1, "a"], [1.5], ["a"] * 129, [True], [""],
                ["a", ""], [2**31], [[2**31]]]),
    "fill_context": ([True, False], [1, "yes"]),
    "best_of": ([1, 128], [0, 129, "2"]),
    "echo": ([True, False], [1, "yes"]),
    "logprobs": ([0, 5, 20], [21, -1, True, "5"]),
    "suffix": ([None, ""], ["x"]),
    "add_special_tokens": ([None, True], [False]),
    "prompt_embeds": ([None], ["x", ["x"]]),
    "chat_template_kwargs": ([None], [{}, {"x": 1}]),
}  # fmt: skip


@pytest.mark.share(20)
@pytest.mark.parametrize("name", BOTH_ROUTES)
def test_what_is_documented_is_what_both_routes_take(name: str) -> None:
    valid, invalid = BOTH_ROUTES[name]
    for path, base in (("/v1/chat/completions", CHAT_BODY), ("/v1/completions", COMPLETION_BODY)):
        for value in valid:
            check_schema_and_parser(path, {**base, name: value}, good=True)
        for value in invalid:
            check_schema_and_parser(path, {**base, name: value}, good=False)


@pytest.mark.parametrize(
    ("path", "base", "table"),
    [("/v1/chat/completions", CHAT_BODY, CHAT_ONLY), ("/v1/completions", COMPLETION_BODY, COMPLETION_ONLY)],
)
def test_what_is_documented_is_what_one_route_takes(
    path: str, base: dict[str, Any], table: dict[str, tuple[list[Any], list[Any]]]
) -> None:
    for name, (valid, invalid) in table.items():
        for value in valid:
            check_schema_and_parser(path, {**base, name: value}, good=True)
        for value in invalid:
            check_schema_and_parser(path, {**base, name: value}, good=False)
    for name in base:
        others = {key: value for key, value in base.items() if key != name}
        check_schema_and_parser(path, others, good=name == "model")
    check_schema_and_parser(path, base, good=True)


def test_the_examples_above_are_of_every_field() -> None:
    """Except for stream_options (needs stream) and top_logprobs (needs logprobs)."""
    ignored = {name for name, field in CHAT.items() if field.effect is Effect.IGNORED}
    assert {*CHAT} - ignored - {*BOTH_ROUTES} - {*CHAT_ONLY} == {"stream_options", "top_logprobs"}
    assert {*COMPLETION} - {*BOTH_ROUTES} - {*COMPLETION_ONLY} == {"stream_options"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_fields_that_need_another_one(path: str) -> None:
    base = CHAT_BODY if path == "/v1/chat/completions" else COMPLETION_BODY
    for stream in (True, False):
        for options in (
            {"include_usage": True},
            {"include_usage": False},
            {"include_usage": None},
            {},
            None,
            {"x": 5},
            {"include_usage": True, "continuous_usage_stats": True},
            {"continuous_usage_stats": None},
        ):
            check_schema_and_parser(path, {**base, "stream": stream, "stream_options": options}, good=True)
        for options in ({"include_usage": 1}, {"include_usage": "yes"}, {"continuous_usage_stats": 1}, [], 5):
            check_schema_and_parser(path, {**base, "stream": stream, "stream_options": options}, good=False)
    if path == "/v1/chat/completions":
        for top, good in ((0, True), (20, True), (21, False), (-1, False), ("5", False)):
            check_schema_and_parser(path, {**base, "logprobs": True, "top_logprobs": top}, good=good)


@pytest.mark.parametrize(("path", "table"), [("/tokenize", TOKENIZE), ("/detokenize", DETOKENIZE)])
def test_every_field_of_a_conversion_is_documented(path: str, table: Mapping[str, Any]) -> None:
    assert list(body_schema(path)["properties"]) == [*table]


USER = {"role": "user", "content": "x"}
CONVERSIONS: list[tuple[str, dict[str, Any], bool]] = [
    ("/tokenize", {"prompt": "x"}, True),
    ("/tokenize", {"prompt": "x", "messages": None, "model": None, "tools": None, "add_special_tokens": None}, True),
    ("/tokenize", {"messages": [USER], "tools": [TOOL], "add_generation_prompt": False}, True),
    ("/tokenize", {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}}, True),
    ("/tokenize", {"messages": [{**USER, "role": "assistant"}], "continue_final_message": True}, True),
    ("/tokenize", {"messages": [USER], "chat_template_kwargs": {"tokenize": False}}, False),
    ("/tokenize", {"messages": [USER], "continue_final_message": "yes"}, False),
    ("/tokenize", {"messages": [USER], "prompt": "x"}, False),
    ("/tokenize", {"messages": []}, False),
    ("/tokenize", {"messages": [USER] * 8193}, False),
    ("/tokenize", {"messages": [USER], "tools": [TOOL] * 129}, False),
    ("/tokenize", {"messages": [USER], "add_special_tokens": 1}, False),
    ("/tokenize", {"prompt": "x", "add_generation_prompt": "yes"}, False),
    ("/tokenize", {"prompt": "x", "tools": [5]}, False),
    ("/tokenize", {"prompt": "x", "return_token_strs": 1}, False),
    ("/tokenize", {"prompt": 5}, False),
    ("/tokenize", {"prompt": "x", "model": ""}, True),
    ("/tokenize", {}, False),
    ("/detokenize", {"tokens": []}, True),
    ("/detokenize", {"tokens": [1, 2], "model": None}, True),
    ("/detokenize", {"tokens": [True]}, False),
    ("/detokenize", {"tokens": None}, False),
    ("/detokenize", {"tokens": "x"}, False),
]


@pytest.mark.share(10)
@pytest.mark.parametrize(("path", "body", "good"), CONVERSIONS)
def test_what_is_documented_is_what_the_conversions_take(path: str, body: dict[str, Any], good: bool) -> None:
    async def scenario() -> int:
        async with open_server(fake_service()) as server:
            return (await server.http.post(path, json=body)).status_code

    assert Draft202012Validator(body_schema(path)).is_valid(body) is good
    assert run(scenario()) == (200 if good else 400)
