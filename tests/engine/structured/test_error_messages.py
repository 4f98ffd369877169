"""Messages about invalid or excessive grammars: short, with the reason, without the library's view of the grammar."""

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured.compile_sandbox import CompileSandbox, SandboxKilled
from chairlift.text.forced_call_grammar import tool_call_grammar
from chairlift.text.tool_formats.json_calls import HERMES
from support_grammars import VOCAB_SIZE, VOCABULARY

MAX_CHARS = 400
DUMP = re.compile(r"\n|\(And|\(Regex|SearchRegex|%json|start: |x-guidance|Some\(|⟦|\U0010fffd|whitespace_pattern")
"""Parts of what the library prints about a grammar; the clients' grammars below do not contain them."""

LONG = "x" * 3000
CASES: list[tuple[dict[str, Any], str]] = [
    ({"regex": "(("}, "unclosed group"), ({"regex": LONG + "("}, "unclosed group"),
    ({"regex": "[z-a]"}, "the start must be <= the end"), ({"regex": "(?=a)"}, "look-around"),
    ({"regex": r"(a)\1"}, "backreferences"), ({"regex": r"\p{Foo}"}, "Unicode property not found"),
    ({"grammar": "root:\n| start"}, ""), ({"grammar": "start: absent " + '"a" ' * 900}, 'unknown name: "absent"'),
    ({"grammar": "start: <absent>"}, 'unknown special token: "<absent>"'), ({"grammar": LONG}, "GBNF"),
    ({"grammar": "root ::= [" + LONG}, ""), ({"grammar": "start: A\nA: B\nB: A"}, "circular"),
    ({"json_schema": {"type": "banana"}}, "/type"),
    ({"json_schema": {"type": "string", "const": "zz", "format": "uri", "pattern": "a"}}, "Regex is empty"),
    ({"json_schema": {"type": "string", "allOf": [{"pattern": "^a+$"}, {"pattern": "^b+$"}]}}, "Regex is empty"),
    ({"json_schema": {"type": "string", "pattern": "((" + LONG}}, "unclosed group"),
    ({"json_schema": {"properties": {LONG: {"uniqueItems": True}}}}, "needs items from a finite set"),
    ({"json_schema": {"$ref": f"#/{LONG}"}}, "refers to nothing"),
    ({"json_schema": {"type": "object", "properties": {f"{LONG[:20]}{number}": {} for number in range(6000)}}},
     "/properties with 6000 entries"),
    ({"json_schema": {"anyOf": [{"properties": {f"p{number}": {"type": "string"} for number in range(300)}}] * 20}},
     "with 300 entries"),
    ({"grammar": "start: " + " ".join(f"a{n}?" for n in range(5000)) + "".join(f'\na{n}: "k{n}"' for n in range(5000))},
     "too complex to follow (Current row has"),
]  # fmt: skip


@pytest.fixture(scope="module")
def sandbox() -> Iterator[CompileSandbox]:
    created = CompileSandbox(VOCABULARY, VOCAB_SIZE)
    yield created
    created.kill()


def rejection(sandbox: CompileSandbox, structured: StructuredOutput) -> str:
    """Return the message with which a structured output is rejected, "" if it is not."""
    try:
        sandbox.check(structured)
    except (InvalidRequest, SandboxKilled) as error:
        return str(error)
    return ""


def check_message(message: str) -> None:
    assert len(message) < MAX_CHARS and not DUMP.search(message), message


@pytest.mark.parametrize(("structure", "reason"), CASES, ids=range(len(CASES)))
def test_a_message_has_the_reason_and_nothing_of_the_grammar(
    sandbox: CompileSandbox, structure: dict[str, Any], reason: str
) -> None:
    message = rejection(sandbox, StructuredOutput(**structure))
    assert message.startswith(f"structured.{next(iter(structure))}") and reason in message
    check_message(message)


def test_the_position_in_a_grammar_that_the_client_did_not_write_is_left_out(sandbox: CompileSandbox) -> None:
    assert rejection(sandbox, StructuredOutput(regex="((")) == "structured.regex: invalid regex: unclosed group"
    assert "at 2(4): unknown" in rejection(sandbox, StructuredOutput(grammar="start: a\na: b"))


def test_a_schema_of_a_tool_that_no_output_can_match_shows_no_grammar_of_calls(sandbox: CompileSandbox) -> None:
    impossible = {"type": "object", "properties": {"a": {"type": "string", "const": "zz", "format": "uri"}},
                  "required": ["a"]}  # fmt: skip
    grammar = tool_call_grammar(HERMES, {"f": impossible, "g": {"type": "object"}}, several=True)
    message = rejection(sandbox, StructuredOutput(grammar=grammar))
    assert "Unsatisfiable schema" in message
    check_message(message)


@pytest.mark.full
def test_random_damage_to_grammars_and_expressions_never_shows_them(sandbox: CompileSandbox) -> None:
    rng, found = random.Random(5), 0
    texts = [
        'root: "a" /b+/ (c | d)* \nc: "x"{2,3}\nd: %ignore', "(a|b){2,5}[^c-f]+\\d(?:xy)*", 'root ::= ("a" | b) [a-z]'
    ]  # fmt: skip
    for number in range(90):
        text = list(texts[number % 3])
        for _ in range(rng.randrange(1, 6)):
            place = rng.randrange(len(text))
            text[place : place + rng.randrange(3)] = rng.choice('()[]{}|*+?"/\\:=<>&~%@.,1\n a')
        kind = "regex" if number % 3 == 1 else "grammar"
        message = rejection(sandbox, StructuredOutput(**{kind: "".join(text)}))
        found += bool(message)
        check_message(message)
    assert found > 30
