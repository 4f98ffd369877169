"""Structured output with vocabularies of published models, whose tokens are several bytes or parts of a character."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tokenizers import Tokenizer

from chairlift import LLM, SamplingParams, StructuredOutput
from chairlift.engine.structured.grammar_matcher import BITS, GrammarMatcher
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.engine.structured.llguidance_adapter import make_matcher, make_tokenizer, source_of
from support_grammars import allowed_tokens, generate_output, grammar_of, random_pick
from support_models import save_tiny
from support_schemas import schemas
from support_text import STYLES, build_tokenizer, save_tokenizer

JsonSchemaValidator: Any = jsonschema.validators.validator_for(
    {"$schema": "https://json-schema.org/draft/2020-12/schema"}
)
REGEXES = (
    "[0-9]{2}:[0-9]{2}( o'clock)?", "(hello|The lift)( world| never stops){0,3}!", "[a-z][a-z ]{4,19}x",
    "é{1,4}[文字中]{1,3}z",
)  # fmt: skip
CHOICES = (("nobody", "Nobody waits", "nobody waits for the slowest"), ("文", "文字", " lift"), ("{", "{}"))
OPEN: tuple[dict[str, Any], ...] = (
    {"type": "object"},
    {"type": "object", "additionalProperties": True, "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "properties": {"lift": {"const": "\u00e4\n"}}},
    {"type": "object", "additionalProperties": {"type": "string", "maxLength": 3}, "required": ["z"]},
)
"""Objects that may have properties that the schema does not name."""


@cache
def model_of(style: str, folder: Path) -> Path:
    """Save a tiny model with a tokenizer of this style, whose end of sequence is its own."""
    tokenizer, config = build_tokenizer(style)
    size = tokenizer.get_vocab_size()
    path = save_tokenizer(save_tiny("llama", folder / style, vocab_size=-(-size // 8) * 8), tokenizer, config)
    generation = {"eos_token_id": tokenizer.token_to_id(config["eos_token"])}
    (path / "generation_config.json").write_text(json.dumps(generation))
    return path


@pytest.fixture(scope="module", params=STYLES)
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def llm(style: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with LLM(str(model_of(style, tmp_path_factory.mktemp("models"))), num_blocks=400, seed=4) as llm:
        yield llm


@cache
def tokenizer_and_view(style: str) -> tuple[Tokenizer, Any]:
    tokenizer, config = build_tokenizer(style)
    eos = tokenizer.token_to_id(config["eos_token"])
    return tokenizer, make_tokenizer(GrammarTokenizer(tokenizer.to_str().encode(), (eos,)), tokenizer.get_vocab_size())


def make_params(count: int, **structure: Any) -> list[SamplingParams]:
    structured = StructuredOutput(**structure)
    return [
        SamplingParams(structured=structured, seed=seed, temperature=(0.0, 1.0, 1.6)[seed % 3], max_tokens=700)
        for seed in range(count)
    ]


@pytest.mark.full
def test_texts_match_exactly(llm: LLM, style: str) -> None:
    """Except for a space at the start of an output, where the vocabulary puts one before every text."""
    requests = [(regex, each) for regex in REGEXES for each in make_params(6, regex=regex)]
    results = llm.generate(["The lift"] * len(requests), [each for _, each in requests], use_tqdm=False)
    for (regex, _), result in zip(requests, results, strict=True):
        assert result.error is None and result.outputs[0].finish_reason == "stop"
        assert re.fullmatch(regex, result.outputs[0].text), (regex, result.outputs[0].text)
    choice_requests = [(choice, each) for choice in CHOICES for each in make_params(6, choice=choice)]
    results = llm.generate(["The lift"] * len(choice_requests), [each for _, each in choice_requests], use_tqdm=False)
    for (choice, _), result in zip(choice_requests, results, strict=True):
        dropped_prefix = " " if style in ("llama2", "mistral") else ""
        assert result.outputs[0].text in {text.removeprefix(dropped_prefix) for text in choice}, (
            choice,
            result.outputs[0],
        )


@pytest.mark.full
def test_schemas_hold(llm: LLM) -> None:
    tested = schemas(24)
    requests = [
        each for number, schema in enumerate(tested) for each in make_params(3, json_schema=schema)[number % 3 :][:1]
    ]
    for schema, result in zip(tested, llm.generate(["{"] * len(tested), requests, use_tqdm=False), strict=True):
        assert result.error is None and result.outputs[0].finish_reason == "stop", (schema, result.outputs[0].text)
        jsonschema.validate(json.loads(result.outputs[0].text), schema, JsonSchemaValidator)


@pytest.mark.share(2)
def test_texts_can_be_written_as_the_tokenizer_writes_them(style: str) -> None:
    tokenizer, view = tokenizer_and_view(style)
    texts = ["Nobody waits for the slowest rider", "Gäste \U0001f6a1 文字", "x + 1\n", "hello", ""]
    for text in texts:
        schema = {"type": "object", "properties": {"text": {"const": text}}, "required": ["text"]}
        json_text = json.dumps({"text": text}, ensure_ascii=False)
        matcher = make_matcher(source_of(StructuredOutput(json_schema=schema)), view)
        grammar = GrammarMatcher(matcher, -(-view.vocab_size // BITS))
        tokens = tokenizer.encode(json_text, add_special_tokens=False).ids
        if style in ("llama2", "mistral"):
            assert tokenizer.id_to_token(tokens.pop(0)) == "\u2581"  # the space before a text
        for token in tokens:
            assert token in allowed_tokens(grammar), (text, tokenizer.id_to_token(token))
            grammar.advance(token)
        assert grammar.is_terminated or view.eos_token in allowed_tokens(grammar)


@pytest.mark.share(1)
@pytest.mark.parametrize("schema", OPEN)
def test_properties_that_the_schema_does_not_name_are_valid(schema: dict[str, Any]) -> None:
    validator = JsonSchemaValidator(schema)
    extra = 0
    for seed in range(30):
        value = json.loads(generate_output(grammar_of(json_schema=schema), random_pick(seed), longest=20_000))
        assert validator.is_valid(value), value
        extra += bool(set(value) - set(schema.get("properties", {})))
    assert extra


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (OPEN[0], ['{"a": [1, {"b": null}]}', "{}"], ["[]"]),
        (OPEN[1], ['{"a": 5}', '{"a": 5, "b": "x", "c": {}}'], ['{"b": 1}', '{"a": "5"}']),
        (OPEN[2], ['{"lift": "\u00e4\\n", "lifts": true}', '{"x": false}'], ['{"lift": true}', '{"x": 1}']),
        (OPEN[3], ['{"z": "abc"}', '{"z": "", "y": "\u4e2d\u6587"}'], ['{"y": ""}', '{"z": "abcd"}']),
    ],
)
def test_and_any_of_these_can_be_written_and_no_other(
    schema: dict[str, Any], valid: list[str], invalid: list[str]
) -> None:
    def accepts(text: str) -> bool:
        grammar = grammar_of(json_schema=schema)
        for token in text.encode():
            if token not in allowed_tokens(grammar):
                return False
            grammar.advance(token)
        return True

    assert all(map(accepts, valid)) and not any(map(accepts, invalid))
