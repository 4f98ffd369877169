"""ValueKeys: texts by which the values in a JSON Schema are compared, each of them made once."""

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chairlift.engine.structured.json_schema.document import Node

MAX_KEY_CHARS = 256
"""Longest key that is kept as it is; of a longer one the digest."""


def key_of(value: Any) -> str:
    """Return a text that is the same for equal JSON values only; 1.0 equals 1, true does not."""
    key = json.dumps(value, sort_keys=True)
    if ".0" in key or "e+" in key:  # perhaps of a number without a fraction
        key = json.dumps(_normal(value), sort_keys=True)
    return key if len(key) <= MAX_KEY_CHARS else f"digest {len(key)} {blake2b(key.encode()).hexdigest()}"


def num_chars_of(key: str) -> int:
    """Return how long the JSON text of a value is, by its key."""
    return int(key.split()[1]) if key.startswith("digest ") else len(key)


def _normal(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_normal(each) for each in value]
    return {name: _normal(each) for name, each in value.items()} if isinstance(value, dict) else value


class ValueKeys:
    """The keys of the values of one document, by the place of their schema."""

    def __init__(self) -> None:
        self._of_keywords: dict[tuple[str, str], str] = {}
        self._of_lists: dict[tuple[str, str], dict[str, Any]] = {}

    def of(self, node: "Node", keyword: str) -> str:
        """Return the key of a keyword's value, null if the schema does not have it."""
        value = node.schema.get(keyword)
        if not isinstance(value, dict | list | str) or keyword == "type":  # implied types are not in the document
            return key_of(value)
        place = node.pointer, keyword
        if place not in self._of_keywords:
            self._of_keywords[place] = key_of(value)
        return self._of_keywords[place]

    def of_list(self, node: "Node", keyword: str) -> dict[str, Any]:
        """Return the values of `const` or `enum` by their keys, none if the schema does not have it."""
        if keyword not in node.schema:
            return {}
        place = node.pointer, keyword
        if place not in self._of_lists:
            values = [node.schema["const"]] if keyword == "const" else node.schema["enum"]
            self._of_lists[place] = {key_of(value): value for value in values}
        return self._of_lists[place]

    def listed(self, node: "Node") -> dict[str, Any]:
        """Return the values that `const` and `enum` of a schema allow, by their keys; it has one of them."""
        if "const" in node.schema and "enum" in node.schema:
            among = self.of_list(node, "enum")
            return {key: value for key, value in self.of_list(node, "const").items() if key in among}
        return self.of_list(node, "const" if "const" in node.schema else "enum")
