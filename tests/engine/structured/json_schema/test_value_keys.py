"""key_of and ValueKeys: equal texts for equal values only, each made once."""

from typing import Any

from chairlift.engine.structured.json_schema import value_keys
from chairlift.engine.structured.json_schema.document import Node
from chairlift.engine.structured.json_schema.value_keys import MAX_KEY_CHARS, ValueKeys, key_of, num_chars_of


def test_equality_of_json_values() -> None:
    assert key_of(1) == key_of(1.0) != key_of(True) and key_of([1.0, {"b": 1, "a": 2}]) == key_of(
        [1, {"a": 2, "b": 1.0}]
    )
    assert key_of(1e22) == key_of(10**22) and key_of([-0.0, 5e-324, 1.05]) == key_of([0, 5e-324, 1.05])
    values: list[Any] = [
        1.05,
        105,
        "1.0",
        0,
        False,
        None,
        "",
        [],
        {},
        "0",
        *("x" * 300 + end for end in "ab"),
        ["x" * 300],
    ]
    assert len({key_of(value) for value in values}) == len(values)
    assert max(len(key_of(value)) for value in ("x" * 10_000, ["é" * 10_000])) <= MAX_KEY_CHARS
    assert [num_chars_of(key_of(value)) for value in (12, "x" * 10, "x" * 10_000)] == [2, 12, 10_002]


def test_a_key_is_made_once(monkeypatch: Any) -> None:
    num_made = []
    monkeypatch.setattr(value_keys, "key_of", lambda value: num_made.append(1) or key_of(value))
    node, keys = Node({"enum": ["a", 1, 1.0], "const": 1, "not": {"minimum": 1}}, "/a", ""), ValueKeys()
    for _ in range(3):
        assert keys.of(node, "not") == key_of({"minimum": 1.0}) and keys.of(node, "if") == key_of(None)
        assert keys.of_list(node, "enum") == {'"a"': "a", "1": 1.0} and keys.listed(node) == {"1": 1}
        assert keys.of_list(Node({}, "/b", ""), "enum") == {}
    assert len(num_made) == 1 + 3 + 3 + 1  # the key of what is not there is made each time
    assert keys.listed(Node({"const": "b", "enum": ["a"]}, "/c", "")) == {}
    assert keys.listed(Node({"const": "b"}, "/d", "")) == {'"b"': "b"}


def test_the_types_of_a_schema_are_not_kept() -> None:
    """Implied types depend on the schemas around it."""
    keys = ValueKeys()
    assert keys.of(Node({"type": ["string"]}, "/a", ""), "type") != keys.of(Node({"type": ["null"]}, "/a", ""), "type")
