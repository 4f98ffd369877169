"""YAML nodes: read a settings file into values with their lines; every scalar stays text.

The bytes, values and depth of a file are bounded, including values that aliases repeat. Tags that stand for more than
plain data are rejected.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import yaml

MAX_BYTES = 65_536
MAX_VALUES = 10_000
"""Most values of a file, including those that its aliases repeat."""

MAX_DEPTH = 8
MAX_DISPLAYED = 60
"""Most characters of a text, and most items of a list or mapping, that a message quotes."""

PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge", "seq", "map")
)
NULL = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """The value of a key: a scalar, a list, a mapping, or null without any of these.

    Attributes:
        line: line in which the value begins.
        text: text of a scalar.
        items: values of a list.
        pairs: keys and values of a mapping.
    """

    line: int
    text: str | None = None
    items: "Sequence[Value] | None" = None
    pairs: "Sequence[tuple[str, Value]] | None" = None

    @property
    def is_null(self) -> bool:
        """Whether the value is null."""
        return self.text is None and self.items is None and self.pairs is None

    def describe(self) -> str:
        """Return the value and its type for a message."""
        if self.is_null:
            return "null"
        if self.text is not None:
            return repr(shorten(self.text))
        return f"a {'list' if self.pairs is None else 'mapping'} {shorten(self._flow())}"

    def _flow(self) -> str:
        if self.items is not None:
            return f"[{', '.join(item._flow() for item in self.items[:MAX_DISPLAYED])}]"
        if self.pairs is not None:
            return f"{{{', '.join(f'{name}: {value._flow()}' for name, value in self.pairs[:MAX_DISPLAYED])}}}"
        return self.text or "null"


@dataclass(frozen=True, slots=True)
class Problem:
    """An error in a settings file.

    Attributes:
        line: line number from 1; 0 is the file as a whole.
        message: the error; the location precedes it in the sentence that people read.
    """

    line: int
    message: str


class InvalidNode(Exception):
    """A file, or a value in it, is not valid."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(line, message)


Key = tuple[str, int, Value | InvalidNode]
"""A key, its line, and its value or the error in its value."""


def shorten(text: str, length: int = MAX_DISPLAYED) -> str:
    """Return text cut to a length that fits into a message."""
    return text if len(text) <= length else text[: length - 1] + "…"


def read_keys(path: str) -> list[Key]:
    """Return the keys of a file in order, duplicates included. Raises InvalidNode."""
    root = _compose(_text(path))
    return [] if root is None else list(_TreeReader().keys(root))


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise InvalidNode(0, f"the file has {_size(file)} bytes, the limit is {MAX_BYTES}; shorten it")
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        raise InvalidNode(0, f"the file cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidNode(line, f"the file is not UTF-8 ({error.reason}); save it as UTF-8") from None


def _size(file: BinaryIO) -> str:
    size = os.fstat(file.fileno()).st_size
    return str(size) if size > MAX_BYTES else f"more than {MAX_BYTES}"  # a pipe has no size


def _compose(text: str) -> yaml.Node | None:
    """Parse YAML into nodes without constructing Python values. Raises InvalidNode."""
    try:
        node: yaml.Node | None = yaml.compose(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise InvalidNode(0 if mark is None else mark.line + 1, f"the file is not valid YAML: {reason}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InvalidNode(
            line, f"the file is not valid YAML: {error.reason} (U+{ord(text[error.position]):04X})"
        ) from None
    except (ValueError, OverflowError) as error:  # "\\U99999999" is not a character
        raise InvalidNode(0, f"the file is not valid YAML: {error}") from None
    except RecursionError:
        raise InvalidNode(0, f"the value is nested deeper than the limit of {MAX_DEPTH} levels") from None
    return node


class _TreeReader:
    """Reads nodes into values and bounds what aliases can multiply."""

    def __init__(self) -> None:
        self._count = 0

    def keys(self, node: yaml.Node) -> Iterator[Key]:
        """Yield the keys of the file."""
        self._check(node)
        if isinstance(node, yaml.ScalarNode) and node.tag == NULL:
            return
        if not isinstance(node, yaml.MappingNode):
            raise InvalidNode(_line(node), "the file must be one mapping of settings, such as `port: 8080`")
        for key, value in node.value:
            try:
                read: Value | InvalidNode = self._value(value, 1)
            except InvalidNode as error:
                read = error
            yield self._key(key), _line(key), read

    def _value(self, node: yaml.Node, depth: int) -> Value:
        self._check(node)
        line = _line(node)
        if depth > MAX_DEPTH:
            raise InvalidNode(line, f"the value is nested deeper than the limit of {MAX_DEPTH} levels")
        if isinstance(node, yaml.MappingNode):
            return Value(line=line, pairs=list(self._pairs(node, depth)))
        if isinstance(node, yaml.SequenceNode):
            return Value(line=line, items=[self._value(item, depth + 1) for item in node.value])
        return Value(line=line, text=None if node.tag == NULL else node.value)

    def _pairs(self, node: yaml.MappingNode, depth: int) -> Iterator[tuple[str, Value]]:
        names = set[str]()
        for key, value in node.value:
            name = self._key(key)
            if name in names:
                raise InvalidNode(_line(key), f"the key {shorten(name)!r} occurs twice; remove one of them")
            names.add(name)
            yield name, self._value(value, depth + 1)

    def _key(self, node: yaml.Node) -> str:
        self._check(node)
        if not isinstance(node, yaml.ScalarNode):
            raise InvalidNode(_line(node), "a key must be text")
        key: str = node.value
        return key

    def _check(self, node: yaml.Node) -> None:
        """Count a node. Raises InvalidNode for too many nodes and for a tag that is not plain data."""
        self._count += 1
        if self._count > MAX_VALUES:
            raise InvalidNode(_line(node), f"the file has more than {MAX_VALUES} values, aliases included")
        if node.tag not in PLAIN_TAGS:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!", 1)
            raise InvalidNode(_line(node), f"the tag {shorten(tag)} is not allowed; settings are plain values")
        if isinstance(node, yaml.ScalarNode) and any("\ud800" <= char <= "\udfff" for char in node.value):
            raise InvalidNode(_line(node), "the text has half of a surrogate pair; remove the character")


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1
