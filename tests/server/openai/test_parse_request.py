"""Parse: bad values are refused by the name of their field, good ones arrive, and nothing else is ever raised."""

from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.errors import InvalidRequest
from chairlift.core.sampling import MAX_LOGIT_BIAS, MAX_TOKENS, SamplingParams
from chairlift.core.structured_output import MAX_STRUCTURED_CHARS, StructuredOutput
from chairlift.protocol.request_fields import CHAT, COMPLETION, MAX_MESSAGES, MAX_PROMPTS, MAX_SALT_CHARS, Effect
from chairlift.server.openai.parse_request import (
    MAX_TOTAL_CHOICES,
    MAX_USER_CHARS,
    BaseRequest,
    ChatRequest,
    read_chat,
    read_completion,
)
from chairlift.server.openai.tool_choice import parsed_arguments
from chairlift.text.tool_parser import HERMES

CHAT_BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
COMPLETION_BODY = {"model": "m", "prompt": "Hello."}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


def chat(**more: Any) -> Any:
    return read_chat({**CHAT_BODY, **more}, HERMES)


def completion(**more: Any) -> Any:
    return read_completion({**COMPLETION_BODY, **more})


def refused(read: Any, param: str, **more: Any) -> str:
    """Return the sentence with which a body is refused; the field's name begins it."""
    with pytest.raises(InvalidRequest) as caught:
        read(**more)
    error = caught.value
    assert error.details["param"] == param
    assert error.message.startswith(param), error.message
    assert len(error.message) < 400
    return error.message


def schema_form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


def nested(depth: int) -> Any:
    result: Any = "x"
    for level in range(depth):
        result = [result] if level % 2 else {"a": result}
    return result


# What both routes refuse: the case in HTTP.md, the field, its values.
BOTH: list[tuple[int, str, list[Any]]] = [
    (22, "model", [None, "", 5, [], {}, True, "m" * 1001]),
    (31, "max_tokens", [-1, 2**31, "5", 1.5, True, [1], 2**64 - 1]),
    (31, "min_tokens", [-1, "5", 1.5]),
    (32, "n", [0, -1, 129, 10**9, "2", 1.0, True]),
    (34, "top_p", [0, -1, 1.1, "1", True]),
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
    (40, "stop", [["a"] * 5, "", [""], "x" * 2**20, 5, [5], {"a": 1}, [["a"]], [None]]),
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
    (50, "chat_template_kwargs", [{"tokenize": False}, {}, []]),
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


@pytest.mark.parametrize("read", [chat, completion])
@pytest.mark.parametrize(("case", "name", "values"), BOTH, ids=[f"{case}-{name}" for case, name, _ in BOTH])
def test_a_bad_value_is_refused_by_the_name_of_its_field(read: Any, case: int, name: str, values: list[Any]) -> None:
    for value in values:
        assert refused(read, name, **{name.partition(".")[0]: value}), value


CHAT_ONLY: list[tuple[int, str, list[dict[str, Any]]]] = [
    (23, "messages", [{"messages": value} for value in (None, [], "x", 5, {}, {"0": {}}, [{}] * (MAX_MESSAGES + 1))]),
    (31, "max_tokens", [{"max_tokens": 0}]),
    (31, "max_completion_tokens", [{"max_completion_tokens": value} for value in (0, -1, "5", 1.5, 2**31, True)]),
    (37, "logprobs", [{"logprobs": value} for value in (5, 0, "yes", [])]),
    (37, "top_logprobs", [{"logprobs": True, "top_logprobs": value} for value in (21, -1, 100_000, "5", 1.5, True)]),
    (37, "top_logprobs", [{"top_logprobs": 5}, {"logprobs": False, "top_logprobs": 0}]),
    (26, "modalities", [{"modalities": value} for value in (["audio"], ["text", "audio"], "audio", 5, [["text"]])]),
    (26, "functions", [{"functions": [{"name": "f"}]}, {"functions": []}]),
    (26, "function_call", [{"function_call": "auto"}]),
    (47, "tools", [{"tools": [TOOL] * 129}, {"tools": {}}, {"tools": "f"}]),
    (47, "tool_choice", [{"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
                         {"tool_choice": "required"}, {"tools": [], "tool_choice": "required"},
                         {"tools": [TOOL], "tool_choice": "required", "response_format": {"type": "json_object"}},
                         {"tools": [TOOL], "tool_choice": "required", "regex": "a"}]),
    (48, "messages[0].tool_call_id", [{"messages": [{"role": "tool", "content": "5", "tool_call_id": "c"}]}]),
]  # fmt: skip


@pytest.mark.parametrize(("case", "param", "bodies"), CHAT_ONLY)
def test_a_bad_value_of_a_chat_is_refused_by_name(case: int, param: str, bodies: list[dict[str, Any]]) -> None:
    for body in bodies:
        assert refused(chat, param, **body), body


COMPLETION_ONLY: list[tuple[int, str, list[dict[str, Any]]]] = [
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
    (37, "logprobs", [{"logprobs": value} for value in (6, 100_000, -1, "5", 1.5, True)]),
    (26, "echo", [{"echo": "yes"}, {"echo": 1}]),
    (26, "suffix", [{"suffix": "x"}, {"suffix": ""}]),
    (26, "resume", [{"prompt": ["a", "b"], "resume": [[1]]}]),
]  # fmt: skip


@pytest.mark.parametrize(("case", "param", "bodies"), COMPLETION_ONLY)
def test_a_bad_value_of_a_completion_is_refused_by_name(case: int, param: str, bodies: list[dict[str, Any]]) -> None:
    for body in bodies:
        assert refused(completion, param, **body), body


@pytest.mark.parametrize(
    ("read", "body", "numbers"),
    [
        (completion, {"prompt": ["a"] * 10_000}, ("10000", str(MAX_PROMPTS))),
        (completion, {"prompt": ["a", "b"], "n": 65}, ("130", str(MAX_TOTAL_CHOICES))),
        (completion, {"stop": ["a"] * 5}, ("5", "4")),
        (completion, {"max_tokens": -1}, ("-1", str(MAX_TOKENS))),
        (chat, {"messages": [{}] * 9000}, ("9000", str(MAX_MESSAGES))),
        (chat, {"logit_bias": {str(token): 1 for token in range(2000)}}, ("2000", str(MAX_LOGIT_BIAS))),
        (chat, {"cache_salt": "x" * 129}, ("129", str(MAX_SALT_CHARS))),
        (chat, {"tools": [TOOL] * 129}, ("129", "128")),
    ],
)
def test_a_sentence_of_a_bound_has_both_numbers(read: Any, body: dict[str, Any], numbers: tuple[str, str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**body)
    assert all(number in caught.value.message for number in numbers), caught.value.message


@pytest.mark.parametrize("read", [chat, completion])
def test_what_is_needed_and_not_there_is_named(read: Any) -> None:
    for name in ("model", "messages" if read is chat else "prompt"):
        body = {**CHAT_BODY, **COMPLETION_BODY}
        del body[name]
        with pytest.raises(InvalidRequest) as caught:
            read_chat(body, None) if read is chat else read_completion(body)
        assert (caught.value.message, caught.value.details["param"]) == (f"{name} is missing", name)


# -- what arrives ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [chat, completion])
def test_a_plain_body_asks_for_nothing_special(read: Any) -> None:
    asked: BaseRequest = read()
    assert asked.params == SamplingParams()
    assert (asked.model, asked.stream, asked.include_usage, asked.return_token_ids) == ("m", False, False, False)
    assert (asked.resume, asked.priority, asked.timeout, asked.cache_salt) == ((), 0, None, "")
    assert (asked.user, asked.ignored) == ("", ())


@pytest.mark.parametrize("table", [CHAT, COMPLETION], ids=["chat", "completion"])
def test_null_is_the_same_as_absent_in_every_field_that_is_not_required(table: Mapping[str, Any]) -> None:
    nulls = {name: None for name, field in table.items() if not field.required}
    assert (chat(**nulls) == chat()) if table is CHAT else (completion(**nulls) == completion())


SAMPLING: dict[str, Any] = {
    "temperature": 0.5, "top_p": 0.9, "n": 2, "seed": -(2**63), "presence_penalty": -2, "frequency_penalty": 2,
    "logit_bias": {"5": -100, "007": 1.5}, "stop": ["a", "b", "c", "d"], "top_k": 40, "min_p": 0.1, "typical_p": 0.5,
    "epsilon_cutoff": 0.1, "eta_cutoff": 0.1, "repetition_penalty": 1.1, "no_repeat_ngram_size": 3, "min_tokens": 1,
    "ignore_eos": True, "stop_token_ids": [1, 2], "allowed_token_ids": [3], "bad_words": ["x"],
    "skip_special_tokens": False, "include_stop_str_in_output": True, "logits_processors": ["p"], "max_tokens": 9,
}  # fmt: skip


@pytest.mark.parametrize("read", [chat, completion])
def test_every_sampling_field_reaches_the_sampler(read: Any) -> None:
    declared = {name for name, field in CHAT.items() if field.sampling}
    assert declared == set(SAMPLING)
    assert read(**SAMPLING).params == SamplingParams(**{**SAMPLING, "logit_bias": {5: -100, 7: 1.5}})


@pytest.mark.parametrize(
    ("body", "params"),
    [
        ({"temperature": 1e-12}, SamplingParams(temperature=1e-12)),
        ({"seed": 2**63 - 1}, SamplingParams(seed=2**63 - 1)),
        ({"top_k": -1}, SamplingParams(top_k=0)),
        ({"stop": "end"}, SamplingParams(stop=("end",))),
        ({"logit_bias": {}}, SamplingParams()),
        ({"max_tokens": 2**31 - 1}, SamplingParams(max_tokens=2**31 - 1)),
        ({"logits_processors": {"p": {"k": 1}}}, SamplingParams(logits_processors={"p": {"k": 1}})),  # type: ignore[arg-type]
    ],
)
def test_values_on_the_bound_arrive(body: dict[str, Any], params: SamplingParams) -> None:
    assert chat(**body).params == completion(**body).params == params


def test_our_own_fields_arrive() -> None:
    ours = {"priority": 2**31 - 1, "timeout": 0.5, "return_token_ids": True, "resume": [[1, 2], []], "cache_salt": "s"}
    for asked in (chat(**ours), completion(**ours)):
        assert (asked.priority, asked.timeout, asked.return_token_ids) == (2**31 - 1, 0.5, True)
        assert (asked.resume, asked.cache_salt) == (((1, 2), ()), "s")


@pytest.mark.parametrize("size", [0, 1, MAX_USER_CHARS, MAX_USER_CHARS + 1, 2**20])
def test_a_user_is_cut_to_what_a_log_takes(size: int) -> None:
    assert chat(user="u" * size).user == "u" * min(size, MAX_USER_CHARS)


def test_usage_comes_only_in_streams_that_ask_for_it() -> None:
    for options, stream, wants, ignored in (
        ({"include_usage": True}, True, True, ()),
        ({"include_usage": False}, True, False, ()),
        ({"include_usage": None}, True, False, ()),
        ({}, True, False, ()),
        (None, True, False, ()),
        ({"include_usage": True}, False, False, ("stream_options",)),
        ({"include_usage": True}, None, False, ("stream_options",)),
        ({"include_usage": True, "include_obfuscation": False}, True, True, ("stream_options.include_obfuscation",)),
        ({"include_obfuscation": False}, False, False, ("stream_options",)),
    ):
        asked = completion(stream=stream, stream_options=options)
        assert (asked.include_usage, asked.ignored) == (wants, ignored), (options, stream)


@pytest.mark.parametrize("value", [1, 0, "yes", "", [], {}])
def test_include_usage_is_true_or_false(value: Any) -> None:
    for stream in (True, False):
        assert refused(chat, "stream_options.include_usage", stream=stream, stream_options={"include_usage": value})


@pytest.mark.parametrize("value", [[], 5, "x", True])
def test_stream_options_are_an_object(value: Any) -> None:
    for stream in (True, False):
        assert refused(chat, "stream_options", stream=stream, stream_options=value)


def test_the_newer_name_of_max_tokens_wins() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).params.max_tokens == 7
    assert chat(max_completion_tokens=7).params.max_tokens == 7
    assert chat(max_tokens=5, max_completion_tokens=None).params.max_tokens == 5
    assert completion(max_completion_tokens=7).ignored == ("max_completion_tokens",), "of chats alone"


@pytest.mark.parametrize("value", [0, "5", 1.5, -1])
def test_the_older_name_is_checked_where_the_newer_one_wins(value: Any) -> None:
    assert refused(chat, "max_tokens", max_tokens=value, max_completion_tokens=5)


def test_scores_of_a_chat() -> None:
    for body, logprobs, shows in (
        ({}, None, False),
        ({"logprobs": False}, None, False),
        ({"logprobs": True}, 0, True),
        ({"logprobs": True, "top_logprobs": 0}, 0, True),
        ({"logprobs": True, "top_logprobs": 20}, 20, True),
    ):
        asked = chat(**body)
        assert (asked.params.logprobs, asked.logprobs) == (logprobs, shows)


def test_scores_of_a_completion_are_of_the_prompt_too_where_it_is_echoed() -> None:
    for body, logprobs, prompt_logprobs in (
        ({}, None, None),
        ({"logprobs": 0}, 0, None),
        ({"logprobs": 5}, 5, None),
        ({"logprobs": 5, "echo": True}, 5, 5),
        ({"logprobs": 0, "echo": True, "max_tokens": 0}, 0, 0),
        ({"echo": True}, None, None),
    ):
        params = completion(**body).params
        assert (params.logprobs, params.prompt_logprobs) == (logprobs, prompt_logprobs)


def test_nothing_may_be_generated_where_the_prompt_is_echoed() -> None:
    params = completion(max_tokens=0, echo=True).params
    assert (params.max_tokens, params.echo) == (0, True)


def test_the_best_of_several_are_asked_for() -> None:
    params = completion(n=2, best_of=5).params
    assert (params.n, params.best_of) == (2, 5)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Hello.", ("Hello.",)),
        ("", ("",)),
        ([1, 0, MAX_TOKENS], ((1, 0, MAX_TOKENS),)),
        (["a", "b"], ("a", "b")),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (["a"] * MAX_PROMPTS, ("a",) * MAX_PROMPTS),
    ],
)
def test_prompts_are_texts_or_ids_or_lists_of_them(prompt: Any, prompts: Any) -> None:
    assert completion(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"response_format": schema_form(SCHEMA)}, {"json_schema": SCHEMA}),
        ({"response_format": schema_form({})}, {"json_schema": {}}),
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
        ({"choice": ["a", "b"]}, {"choice": ("a", "b")}),
        ({"regex": "a+", "response_format": {"type": "text"}}, {"regex": "a+"}),
        ({"regex": "a+", "grammar": None}, {"regex": "a+"}),
    ],
)
def test_a_structure_arrives(body: dict[str, Any], kind: dict[str, Any] | None) -> None:
    wanted = None if kind is None else StructuredOutput(**kind)
    assert chat(**body).params.structured == completion(**body).params.structured == wanted


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"regex": "a", "grammar": "b"}, "grammar"),
        ({"choice": ["a"], "regex": "a"}, "choice"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_there_is_one_structure_at_most(body: dict[str, Any], param: str) -> None:
    said = refused(chat, param, **body)
    assert all(name in said for name in body)


@pytest.mark.parametrize(("table", "read"), [(CHAT, chat), (COMPLETION, completion)], ids=["chat", "completion"])
def test_what_has_no_effect_is_named_in_the_order_in_which_it_came(table: Mapping[str, Any], read: Any) -> None:
    documented = [name for name, field in table.items() if field.effect is Effect.IGNORED]
    asked = read(**{name: {"any": "thing"} for name in documented}, made_up=1, another=None)
    assert asked.ignored == (*documented, "made_up", "another")
    if table is CHAT:
        assert {"store", "metadata", "audio", "prediction", "service_tier"} <= set(documented)


@pytest.mark.parametrize(("table", "read"), [(CHAT, chat), (COMPLETION, completion)], ids=["chat", "completion"])
def test_what_cannot_be_done_is_refused_and_says_what_can(table: Mapping[str, Any], read: Any) -> None:
    for name, field in table.items():
        if field.effect is Effect.REFUSED:
            assert field.help in refused(read, name, **{name: "x"})


@pytest.mark.parametrize(("strict", "choice", "ignored"), [
    (True, "auto", ("tools.function.strict",)), (True, None, ("tools.function.strict",)), (True, "required", ()),
    (True, "none", ()), (False, "auto", ()), (None, "auto", ()),
])  # fmt: skip
def test_a_strict_schema_that_nothing_enforces_is_named(strict: Any, choice: Any, ignored: tuple[str, ...]) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": strict}}
    assert chat(tools=[tool], tool_choice=choice).ignored == ignored


def test_text_in_place_of_other_modalities_is_fine() -> None:
    assert chat(modalities=["text"]) == chat(modalities="text") == chat(modalities=[]) == chat()


def test_tools_change_what_the_sampler_is_asked_for() -> None:
    assert chat(tools=[TOOL]).params == SamplingParams()
    assert chat(tools=[TOOL], tool_choice="none").params == SamplingParams()
    forced = chat(tools=[TOOL], tool_choice="required").params.structured
    assert forced is not None and forced.kind == "grammar"
    free = read_chat({**CHAT_BODY, "tools": [TOOL]}, "mistral")
    assert not free.params.skip_special_tokens, "its calls are written with special tokens"
    assert not completion(tools=[TOOL]).params.structured


# -- anything else -----------------------------------------------------------------------------------------------------


def outcome(read: Any, body: dict[str, Any]) -> Any:
    """Return what is read of a body, or the error that refuses it."""
    try:
        return read(**body)
    except InvalidRequest as error:
        return error


def below(table: Mapping[str, Any], param: object) -> bool:
    """Whether a param is a field of the table, or lies in one."""
    return isinstance(param, str) and param.replace("[", ".").partition(".")[0] in table


@pytest.mark.parametrize("depth", [40, 70, 1020])
def test_what_is_nested_deep_is_refused_or_taken_and_nothing_breaks(depth: int) -> None:
    deep = nested(depth)
    for table, read in ((CHAT, chat), (COMPLETION, completion)):
        for name in [*table, "made_up"]:
            for value in (deep, [deep], [[deep]], {"type": deep}, {"type": "json_schema", "json_schema": deep},
                          {"0": deep}, schema_form(deep), [{"type": "function", "function": deep}],
                          [{"role": "assistant", "tool_calls": [deep]}], {"include_usage": deep}):  # fmt: skip
                got = outcome(read, {name: value, "stream": True} if name == "stream_options" else {name: value})
                if isinstance(got, InvalidRequest):
                    assert below(table, got.details["param"]) and len(got.message) < 400, got.message
                else:
                    assert isinstance(got, BaseRequest)


NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.integers(-3, 130) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    [
        "text",
        "json_object",
        "json_schema",
        "function",
        "required",
        "auto",
        "none",
        "assistant",
        "tool",
        "user",
        "f",
        "c",
        "5",
    ]
)
KEYS = TEXTS | st.sampled_from(
    ["type", "function", "name", "parameters", "json_schema", "schema", "role", "content", "tool_calls", "tool_call_id",
     "id", "arguments", "include_usage"]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | st.just(TOOL) | st.just("{}"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
CALLS = st.lists(st.fixed_dictionaries({}, optional={"id": JSON, "type": JSON, "function": JSON | st.fixed_dictionaries(
    {}, optional={"name": JSON, "arguments": JSON})}) | JSON, max_size=2)  # fmt: skip
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {}, optional={"role": TEXTS, "content": JSON, "tool_calls": CALLS | JSON, "tool_call_id": JSON}
    )
    | JSON,
    max_size=3,
)


def bodies(table: Mapping[str, Any], base: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(sorted(table)) | TEXTS
    some = st.dictionaries(names, JSON, max_size=4)
    special = st.fixed_dictionaries({}, optional={"messages": MESSAGES, "tools": st.lists(JSON, max_size=2)})
    return st.tuples(st.sampled_from([base, {}]), special, some).map(lambda parts: {**parts[0], **parts[1], **parts[2]})


def check_any(table: Mapping[str, Any], body: dict[str, Any]) -> None:
    """A body is read, or refused by the name of a field; what is read twice is the same."""
    body = orjson.loads(orjson.dumps(body))
    before = orjson.dumps(body)
    asked = outcome(lambda **body: read_chat(body, HERMES) if table is CHAT else read_completion(body), body)
    if isinstance(asked, InvalidRequest):
        assert below(table, asked.details["param"]), asked.details
        assert len(asked.message) < 600, asked.message
        return
    if isinstance(asked, ChatRequest):
        assert len(parsed_arguments(asked.messages)) == len(asked.messages)
    assert orjson.dumps(body) == before, "a body is not changed"
    assert set(asked.ignored) <= {*body}
    used = {name for name in body if name in table and table[name].effect is Effect.USED}
    assert not used & {*asked.ignored} - {"stream_options"}, "what is used is not ignored"
    assert not any(table[name].effect is Effect.REFUSED and body[name] is not None for name in body if name in table)


@given(bodies(CHAT, CHAT_BODY))
def test_any_object_is_a_chat_or_is_refused(body: dict[str, Any]) -> None:
    check_any(CHAT, body)


@given(bodies(COMPLETION, COMPLETION_BODY))
def test_any_object_is_a_completion_or_is_refused(body: dict[str, Any]) -> None:
    check_any(COMPLETION, body)


@given(st.sampled_from(sorted(CHAT)), JSON)
def test_any_value_of_any_field_alone(name: str, value: Any) -> None:
    check_any(CHAT, {**CHAT_BODY, name: value})
    check_any(COMPLETION, {**COMPLETION_BODY, name: value})


def test_an_error_names_the_field_that_asked_for_a_structure() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    form = {"type": "json_schema", "json_schema": {"schema": {}}}
    assert (
        chat().structured_field == ""
        and chat(regex="a").structured_field == "regex"
        and chat(choice=["a"]).structured_field == "choice"
    )
    assert (
        chat(response_format=form).structured_field
        == completion(response_format=form).structured_field
        == "response_format"
    )
    assert chat(tools=[tool], tool_choice="required").structured_field == "tools"
