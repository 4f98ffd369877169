"""YAML as a tree of texts with their lines: nothing is made of a value but text, whatever YAML would take it for.

A file has bounded bytes, values and depth, also where aliases repeat them, and no tag that asks for more than data.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import yaml

MAX_BYTES = 65_536
MAX_VALUES = 10_000
"""That a file may have, with those that its aliases repeat."""

MAX_DEPTH = 8
MAX_SHOWN = 60

PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge", "seq", "map")
)
NULL = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What stands behind a key: one of text, items and pairs, or none of them, which is YAML's null.

    Attributes:
        line: in which it begins.
        text: of a scalar.
        items: of a list.
        pairs: of a mapping.
    """

    line: int
    text: str | None = None
    items: "Sequence[Value] | None" = None
    pairs: "Sequence[tuple[str, Value]] | None" = None

    @property
    def is_null(self) -> bool:
        """Whether nothing stands there."""
        return self.text is None and self.items is None and self.pairs is None

    def shown(self) -> str:
        """Return it for people, with what it is."""
        if self.is_null:
            return "null"
        if self.text is not None:
            return repr(cut(self.text))
        return f"a {'list' if self.pairs is None else 'mapping'} {cut(self._flow())}"

    def _flow(self) -> str:
        if self.items is not None:
            return f"[{', '.join(item._flow() for item in self.items[:MAX_SHOWN])}]"
        if self.pairs is not None:
            return f"{{{', '.join(f'{name}: {value._flow()}' for name, value in self.pairs[:MAX_SHOWN])}}}"
        return self.text or "null"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong, and where.

    Attributes:
        line: counted from 1; 0 is the file as a whole.
        said: a sentence without its beginning, which is the place.
    """

    line: int
    said: str


class Unreadable(Exception):
    """A file, or a value in it, that cannot be taken, and why."""

    def __init__(self, line: int, said: str) -> None:
        super().__init__(said)
        self.problem = Problem(line, said)


Key = tuple[str, int, Value | Unreadable]
"""A key, its line, and what stands behind it or why that cannot be taken."""


def cut(text: str, length: int = MAX_SHOWN) -> str:
    """Return text that is short enough to be part of a sentence."""
    return text if len(text) <= length else text[: length - 1] + "…"


def read_keys(path: str) -> list[Key]:
    """Return the keys of a file, in order, also those that are there twice. Raises Unreadable."""
    root = _composed(_text(path))
    return [] if root is None else list(_Tree().keys(root))


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise Unreadable(0, f"has {_size(file)} bytes, the limit is {MAX_BYTES}")
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise Unreadable(0, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Unreadable(line, f"is not UTF-8 ({error.reason}); save it as UTF-8") from None


def _size(file: BinaryIO) -> str:
    size = os.fstat(file.fileno()).st_size
    return str(size) if size > MAX_BYTES else f"more than {MAX_BYTES}"  # a pipe has none


def _composed(text: str) -> yaml.Node | None:
    """Parse YAML into nodes, of which nothing is made. Raises Unreadable."""
    try:
        node: yaml.Node | None = yaml.compose(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise Unreadable(0 if mark is None else mark.line + 1, f"is no YAML: {said}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Unreadable(line, f"is no YAML: {error.reason} (U+{ord(text[error.position]):04X})") from None
    except (ValueError, OverflowError) as error:  # "\\U99999999" is no character
        raise Unreadable(0, f"is no YAML: {error}") from None
    except RecursionError:
        raise Unreadable(0, f"is nested deeper than {MAX_DEPTH} levels, which no setting is") from None
    return node


class _Tree:
    """Turns nodes into values, with bounds on what aliases can make of them."""

    def __init__(self) -> None:
        self._count = 0

    def keys(self, node: yaml.Node) -> Iterator[Key]:
        """Walk the keys of the whole file."""
        self._check(node)
        if isinstance(node, yaml.ScalarNode) and node.tag == NULL:
            return
        if not isinstance(node, yaml.MappingNode):
            raise Unreadable(_line(node), "must be settings such as `port: 8080`, a line each")
        for key, value in node.value:
            try:
                found: Value | Unreadable = self._value(value, 1)
            except Unreadable as error:
                found = error
            yield self._key(key), _line(key), found

    def _value(self, node: yaml.Node, depth: int) -> Value:
        self._check(node)
        line = _line(node)
        if depth > MAX_DEPTH:
            raise Unreadable(line, f"is nested deeper than {MAX_DEPTH} levels, which no setting is")
        if isinstance(node, yaml.MappingNode):
            return Value(line=line, pairs=list(self._pairs(node, depth)))
        if isinstance(node, yaml.SequenceNode):
            return Value(line=line, items=[self._value(item, depth + 1) for item in node.value])
        return Value(line=line, text=None if node.tag == NULL else node.value)

    def _pairs(self, node: yaml.MappingNode, depth: int) -> Iterator[tuple[str, Value]]:
        seen = set[str]()
        for key, value in node.value:
            name = self._key(key)
            if name in seen:
                raise Unreadable(_line(key), f"{cut(name)!r} is there twice; one of them has to go")
            seen.add(name)
            yield name, self._value(value, depth + 1)

    def _key(self, node: yaml.Node) -> str:
        self._check(node)
        if not isinstance(node, yaml.ScalarNode):
            raise Unreadable(_line(node), "a key must be text")
        key: str = node.value
        return key

    def _check(self, node: yaml.Node) -> None:
        """Count a node. Raises Unreadable for one too many, and for a tag that asks for more than data."""
        self._count += 1
        if self._count > MAX_VALUES:
            raise Unreadable(_line(node), f"there are more than {MAX_VALUES} values, with those that aliases repeat")
        if node.tag not in PLAIN_TAGS:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!", 1)
            raise Unreadable(_line(node), f"the tag {cut(tag)} is not taken; settings are plain values")
        if isinstance(node, yaml.ScalarNode) and any("\ud800" <= char <= "\udfff" for char in node.value):
            raise Unreadable(_line(node), "is no text: half of a surrogate pair stands in it")


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1
