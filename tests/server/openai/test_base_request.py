"""common_fields: valid fields reach the request of both routes; unused ones are listed as ignored."""

from collections.abc import Mapping
from typing import Any

import pytest

from chairlift.core.sampling_params import SamplingParams
from chairlift.core.structured_output import StructuredOutput
from chairlift.protocol.request_fields import CHAT, COMPLETION, Effect
from chairlift.server.openai.base_request import MAX_USER_CHARS, BaseRequest
from support_request_bodies import chat, completion, rejection_message, schema_form, unset
from support_shares import for_each

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


@pytest.mark.parametrize("parse", [chat, completion])
def test_a_plain_body_asks_for_nothing_special(parse: Any) -> None:
    request: BaseRequest = parse()
    assert request.params == unset()
    assert (request.model, request.stream) == ("m", False)
    assert (request.include_usage, request.return_token_ids) == (False, False)
    assert (request.resume, request.priority, request.timeout, request.cache_salt) == ((), 0, None, "")
    assert (request.user, request.ignored) == ("", ())


@pytest.mark.parametrize("table", [CHAT, COMPLETION], ids=["chat", "completion"])
def test_null_is_the_same_as_absent_in_every_field_that_is_not_required(table: Mapping[str, Any]) -> None:
    nulls = {name: None for name, field in table.items() if not field.required}
    assert (chat(**nulls) == chat(model="")) if table is CHAT else (completion(**nulls) == completion(model=""))


SAMPLING: dict[str, Any] = {
    "temperature": 0.5, "top_p": 0.9, "n": 2, "seed": -(2**63), "presence_penalty": -2, "frequency_penalty": 2,
    "logit_bias": {"5": -100, "007": 1.5}, "stop": ["a", "b", "c", "d"], "top_k": 40, "min_p": 0.1, "typical_p": 0.5,
    "epsilon_cutoff": 0.1, "eta_cutoff": 0.1, "repetition_penalty": 1.1, "no_repeat_ngram_size": 3, "min_tokens": 1,
    "ignore_eos": True, "stop_token_ids": [1, 2], "allowed_token_ids": [3], "bad_words": ["x"],
    "skip_special_tokens": False, "include_stop_str_in_output": True, "logits_processors": ["p"], "max_tokens": 9,
}  # fmt: skip


@pytest.mark.parametrize("parse", [chat, completion])
def test_every_sampling_field_reaches_the_sampler(parse: Any) -> None:
    declared = {name for name, field in CHAT.items() if field.sampling}
    assert declared == set(SAMPLING)
    assert parse(**SAMPLING).params == SamplingParams(**{**SAMPLING, "logit_bias": {5: -100, 7: 1.5}})


@for_each(
    ("body", "params"),
    [
        ({"temperature": 1e-12}, unset(temperature=1e-12)),
        ({"seed": 2**63 - 1}, unset(seed=2**63 - 1)),
        ({"top_k": -1}, unset(top_k=0)),
        ({"stop": "end"}, unset(stop=("end",))),
        ({"logit_bias": {}}, unset()),
        ({"max_tokens": 2**31 - 1}, unset(max_tokens=2**31 - 1)),
        ({"logits_processors": {"p": {"k": 1}}}, unset(logits_processors={"p": {"k": 1}})),  # type: ignore[arg-type]
    ],
)
def test_values_on_the_bound_arrive(body: dict[str, Any], params: SamplingParams) -> None:
    assert chat(**body).params == completion(**body).params == params


def test_our_own_fields_arrive() -> None:
    fields = {
        "priority": 2**31 - 1,
        "timeout": 0.5,
        "return_token_ids": True,
        "resume": [[1, 2], []],
        "cache_salt": "s",
    }
    for request in (chat(**fields), completion(**fields)):
        assert (request.priority, request.timeout, request.return_token_ids) == (2**31 - 1, 0.5, True)
        assert (request.resume, request.cache_salt) == (((1, 2), ()), "s")


@pytest.mark.parametrize("size", [0, 1, MAX_USER_CHARS, MAX_USER_CHARS + 1, 2**20])
def test_a_user_is_cut_to_what_a_log_takes(size: int) -> None:
    assert chat(user="u" * size).user == "u" * min(size, MAX_USER_CHARS)


def test_usage_comes_only_in_streams_that_ask_for_it() -> None:
    for options, stream, include_usage, ignored in (
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
        request = completion(stream=stream, stream_options=options)
        assert (request.include_usage, request.ignored) == (include_usage, ignored), (options, stream)


def test_counts_in_each_chunk_need_those_of_the_last_one() -> None:
    """As in vLLM."""
    name = "stream_options.continuous_usage_stats"
    for options, stream, has_counts, ignored in (
        ({"include_usage": True, "continuous_usage_stats": True}, True, True, ()),
        ({"include_usage": True, "continuous_usage_stats": False}, True, False, ()),
        ({"include_usage": True, "continuous_usage_stats": None}, True, False, ()),
        ({"continuous_usage_stats": True}, True, False, (name,)),
        ({"include_usage": False, "continuous_usage_stats": True}, True, False, (name,)),
        ({"continuous_usage_stats": False}, True, False, ()),
        ({"include_usage": True, "continuous_usage_stats": True}, False, False, ("stream_options",)),
    ):
        for request in (chat(stream=stream, stream_options=options), completion(stream=stream, stream_options=options)):
            assert (request.has_continuous_usage, request.ignored) == (has_counts, ignored), (options, stream)


@pytest.mark.parametrize("value", [-1, -1.0])
def test_an_output_of_any_length(value: float) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        assert chat(**{name: value}).params.max_tokens is None
    request = completion(max_tokens=value)
    assert request.params.max_tokens is None and request.fills_context


def test_numbers_without_a_fraction_are_integers() -> None:
    params = chat(max_tokens=3.0, top_k=40.0, n=2.0, seed=-5.0, priority=1.0).params
    assert (params.max_tokens, params.top_k, params.n, params.seed) == (3, 40, 2, -5)
    assert {type(each) for each in (params.max_tokens, params.top_k, params.n, params.seed)} == {int}


@for_each(
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
    expected = None if kind is None else StructuredOutput(**kind)
    assert chat(**body).params.structured == completion(**body).params.structured == expected


def test_keywords_of_a_schema_are_ignored_by_name_unless_it_is_strict() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}, "b": {"not": {"const": 1}}}}
    place = "response_format.json_schema.schema/properties/a/uniqueItems"
    for strict in (None, False):
        form = schema_form(schema)
        form["json_schema"]["strict"] = strict
        for request in (chat(response_format=form), completion(response_format=form)):
            assert request.ignored == (place,)
            text = request.params.structured.json_schema
            assert "uniqueItems" not in text and "pattern" not in text and "exclusiveMaximum" in text
    form["json_schema"]["strict"] = True
    assert "/properties/a/uniqueItems needs items" in rejection_message(chat, "response_format", response_format=form)
    for broken in ({"type": "text"}, {"not": {}}):
        assert "cannot be enforced" in rejection_message(chat, "response_format", response_format=schema_form(broken))
    unchanged = chat(response_format=schema_form({"not": {"const": 1}}))
    assert unchanged.ignored == () and unchanged.params.structured.json_schema == '{"not":{"const":1}}'


@pytest.mark.parametrize(("table", "parse"), [(CHAT, chat), (COMPLETION, completion)], ids=["chat", "completion"])
def test_what_has_no_effect_is_named_in_the_order_in_which_it_came(table: Mapping[str, Any], parse: Any) -> None:
    documented = [name for name, field in table.items() if field.effect is Effect.IGNORED]
    request = parse(**{name: {"any": "thing"} for name in documented}, made_up=1, another=None)
    assert request.ignored == (*documented, "made_up", "another")
    if table is CHAT:
        assert {"store", "metadata", "audio", "service_tier"} <= set(documented)


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
