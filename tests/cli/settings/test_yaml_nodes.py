"""YAML nodes: invalid YAML or text, too many values and unsafe tags are errors with a line."""

import os
import threading
from pathlib import Path

import pytest

from chairlift.cli.settings.yaml_nodes import MAX_BYTES, MAX_VALUES, InvalidNode, Value, read_keys


def read_values(folder: Path, text: str | bytes) -> dict[str, Value]:
    """Return the values of a file with this text."""
    path = folder / "s.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    values = {}
    for key, _, value in read_keys(str(path)):
        if isinstance(value, InvalidNode):
            raise value
        values[key] = value
    return values


def test_values_are_text_with_their_lines(tmp_path: Path) -> None:
    values = read_values(tmp_path, "# hello\na: 010\nb: [no, 1e-3]\nc:\n  d: 2024-01-01\ne: ~\nf:\ng: 'null'\n")
    assert values["a"] == Value(line=2, text="010")
    assert values["b"].items == [Value(line=3, text="no"), Value(line=3, text="1e-3")]
    assert values["c"].pairs == [("d", Value(line=5, text="2024-01-01"))]
    assert values["e"].is_null and values["f"].is_null and values["g"].text == "null"


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null\n", "\ufeff"])
def test_a_file_may_be_empty(tmp_path: Path, text: str) -> None:
    assert read_values(tmp_path, text) == {}


def test_an_alias_has_the_value_of_its_anchor(tmp_path: Path) -> None:
    values = read_values(tmp_path, "a: &x [1, 2]\nb: *x\n")
    assert values["a"] == values["b"]


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    assert "port" in read_values(tmp_path, b"\xef\xbb\xbfport: 1\n")


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{one}: &{one} [{', '.join(['*' + before] * 10)}]\n" for before, one in zip("abcdef", "bcdefg", strict=True)
)


@pytest.mark.share(2)
@pytest.mark.parametrize(("text", "line", "message"), [
    ("a: 1\nb: [1\n", 3, "the file is not valid YAML"),
    ("a: 1\nb: c: d\n", 2, "the file is not valid YAML: mapping values are not allowed here"),
    ("a:\n\t- 1\n", 2, "the file is not valid YAML"),
    ("a: 1\n---\nb: 2\n", 2, "the file is not valid YAML: expected a single document"),
    ("a: *unknown\n", 1, "undefined alias"),
    ("a: 1\nb: \x00\n", 2, "special characters are not allowed (U+0000)"),
    (b"a: 1\nb: \xff\n", 2, "the file is not UTF-8"),
    ("a: 1\n".encode("utf-16"), 1, "the file is not UTF-8"),
    ('a: "\\U99999999"\n', 0, "the file is not valid YAML"),
    ('a: "\\ud800"\n', 1, "half of a surrogate pair"),
    ("- a\n- b\n", 1, "the file must be one mapping of settings, such as `port: 8080`"),
    ("just text\n", 1, "the file must be one mapping of settings, such as `port: 8080`"),
    ("{[a]: 1}\n", 1, "a key must be text"),
    ("a: 1\nb: !!python/object/apply:os.system [ls]\n", 2, "the tag !!python/object/apply:os.system is not allowed"),
    ("a: !mine 1\n", 1, "the tag !mine is not allowed"),
    ("a: !!binary aGk=\n", 1, "the tag !!binary is not allowed"),
    ("!!python/object:x.Y {a: 1}\n", 1, "the tag !!python/object:x.Y is not allowed"),
    ("a:\n  b: 1\n  b: 2\n", 3, "the key 'b' occurs twice"),
    ("a: &a [*a]\n", 1, "nested deeper than the limit of 8 levels"),
    ("a: [[[[[[[[[[1]]]]]]]]]]\n", 1, "nested deeper than the limit of 8 levels"),
    ("a: " + "[" * 50_000 + "\n", 0, "nested deeper than the limit of 8 levels"),
    ("a: " + "{a: " * 10_000 + "\n", 0, "nested deeper than the limit of 8 levels"),
    (BOMB, 4, f"more than {MAX_VALUES} values"),
    ("a: [" + "1," * MAX_VALUES + "]\n", 1, f"more than {MAX_VALUES} values"),
])  # fmt: skip
def test_an_invalid_node_is_an_error_with_its_line(tmp_path: Path, text: str | bytes, line: int, message: str) -> None:
    with pytest.raises(InvalidNode) as caught:
        read_values(tmp_path, text)
    assert message in caught.value.problem.message and caught.value.problem.line == line


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    path.write_bytes(b"#" * 10_000_000)
    with pytest.raises(InvalidNode, match=f"has 10000000 bytes, the limit is {MAX_BYTES}"):
        read_keys(str(path))
    path.write_bytes(b"#" * MAX_BYTES)
    assert read_keys(str(path)) == []


@pytest.mark.parametrize(("name", "message"), [
    ("nowhere.yaml", "No such file"), (".", "Is a directory"), ("\0", "null byte"),
])  # fmt: skip
def test_a_path_that_is_no_file(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(InvalidNode, match=message):
        read_keys(f"{tmp_path}/{name}")


def test_a_pipe_is_read_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    for content, keys in ((b"port: 5\n", ["port"]), (b"#" * (MAX_BYTES + 1), None)):
        os.mkfifo(path)
        writer = threading.Thread(target=path.write_bytes, args=(content,))
        writer.start()
        if keys is None:
            with pytest.raises(InvalidNode, match=f"has more than {MAX_BYTES} bytes"):
                read_keys(str(path))
        else:
            assert [key for key, _, _ in read_keys(str(path))] == keys
        writer.join()
        path.unlink()


def test_values_are_shown_for_people() -> None:
    item, pair = Value(line=1, text="x" * 100), Value(line=1, text="b")
    assert Value(line=1).describe() == "null" and len(item.describe()) < 70
    assert Value(line=1, items=[pair, pair]).describe() == "a list [b, b]"
    assert Value(line=1, pairs=[("a", Value(line=1))]).describe() == "a mapping {a: null}"
