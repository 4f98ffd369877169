"""Settings mean the same as a flag, an environment variable or a key of a file."""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.cli.arg_parser import Parser
from chairlift.cli.arguments import add_model, add_settings
from chairlift.cli.settings import settings as declared
from chairlift.cli.settings import value_parsers
from chairlift.cli.settings.config_file import read_config
from chairlift.cli.settings.settings import ENGINE, LOGGING, SAMPLING, SERVER, Setting

ALL = (*SERVER, *ENGINE, *SAMPLING, *LOGGING)
WORDS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)
NAMES = st.text("abcxyz0123456789._-", min_size=1, max_size=6)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False).map(repr)
WHOLES = st.integers(-(10**12), 10**12).map(str)
SIZES = st.builds("{}{}".format, st.integers(0, 10**6), st.sampled_from(["", "KB", "MiB", "gib"]))

TEXTS: dict[Any, st.SearchStrategy[str]] = {
    str: WORDS, value_parsers.whole: WHOLES, value_parsers.number: NUMBERS, value_parsers.size: SIZES,
    value_parsers.flag: st.sampled_from([*value_parsers.TRUE, *value_parsers.FALSE, "True", "NO"]),
    value_parsers.share_or_bytes: st.one_of(SIZES, st.floats(0.01, 1).map(repr)),
    value_parsers.ids: st.lists(WHOLES, min_size=1, max_size=4).map(",".join),
    value_parsers.biases: st.dictionaries(WHOLES, NUMBERS, min_size=1, max_size=3).map(
        lambda pairs: ",".join(f"{token}={bias}" for token, bias in pairs.items())
    ),
    value_parsers.shares: st.dictionaries(NAMES, NUMBERS, min_size=1, max_size=3).map(
        lambda pairs: ",".join(f"{name}={share}" for name, share in pairs.items())
    ),
    value_parsers.factories: st.dictionaries(NAMES, st.just("m.n:f"), min_size=1, max_size=3).map(
        lambda pairs: ",".join(f"{name}={where}" for name, where in pairs.items())
    ),
    value_parsers.structure: st.one_of(
        st.just("json_object"), WORDS.filter(lambda word: word[0] != "@").map("regex={}".format),
        st.lists(NAMES, min_size=1).map(lambda names: "choice=" + "|".join(names)),
    ),
}  # fmt: skip


def text_of(setting: Setting) -> st.SearchStrategy[str]:
    kind = setting.kind
    return st.sampled_from(kind.names) if isinstance(kind, value_parsers.OneOf) else TEXTS[kind]


ASSIGNMENTS = st.lists(st.sampled_from(ALL), unique_by=lambda setting: setting.dest, max_size=12).flatmap(
    lambda chosen: st.tuples(*(st.tuples(st.just(setting), text_of(setting)) for setting in chosen))
)
Assignment = tuple[tuple[Setting, str], ...]


def flags(assignment: Assignment) -> list[str]:
    """Write it as words of a command line."""
    words = []
    for setting, text in assignment:
        if setting.kind is value_parsers.flag:
            words.append(setting.flag if value_parsers.flag(text) else "--no-" + setting.flag.removeprefix("--"))
        else:
            words.append(f"{setting.flag}={text}")
    return words


def natural(setting: Setting, text: str) -> Any:
    """Write a value the way people write it into a file, where it has such a form."""
    if setting.kind is value_parsers.flag:
        return value_parsers.flag(text)
    if setting.kind is value_parsers.whole:
        return int(text)
    if setting.kind is value_parsers.number:
        return float(text)
    if setting.kind in value_parsers.LISTS:
        found: Any = [int(part) for part in text.split(",")]
    elif setting.kind in value_parsers.PAIRS:
        found = dict(part.split("=", 1) for part in text.split(","))
    else:
        found = text
    return [found] if setting.many else found


def parser() -> Parser:
    made = Parser()
    add_model(made)
    for group in (SERVER, ENGINE, SAMPLING, LOGGING):
        add_settings(made, "", group)
    return made


PARSER = parser()


def resolved(arguments: argparse.Namespace, environ: dict[str, str]) -> dict[str, Any]:
    groups = {"server": SERVER, "engine": ENGINE, "sampling": SAMPLING, "logging": LOGGING}
    return {title: declared.given(group, arguments, environ) for title, group in groups.items()}


def from_file(content: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.yaml"
        path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
        arguments = PARSER.parse_args([])
        arguments.file = read_config(str(path)).check()
        return resolved(arguments, {})


@settings(deadline=None)
@given(ASSIGNMENTS)
def test_an_assignment_means_the_same_wherever_it_stands(assignment: Assignment) -> None:
    by_flags = resolved(PARSER.parse_args(flags(assignment)), {})
    assert sum(map(len, by_flags.values())) == len(assignment)
    by_variables = resolved(PARSER.parse_args([]), {setting.environment: text for setting, text in assignment})
    assert by_variables == by_flags
    assert from_file({setting.dest: text for setting, text in assignment}) == by_flags
    kebab = {setting.dest.replace("_", "-"): natural(setting, text) for setting, text in assignment}
    assert from_file(kebab) == by_flags


@settings(deadline=None)
@given(ASSIGNMENTS, st.data())
def test_it_does_not_matter_how_it_is_spread(assignment: Assignment, data: st.DataObject) -> None:
    """Each setting stands in one place with its value, and perhaps in weaker ones with another."""
    words, environ, content = list[str](), dict[str, str](), dict[str, Any]()
    for setting, text in assignment:
        strongest = data.draw(st.sampled_from(["flag", "environment", "file"]))
        other = data.draw(st.one_of(st.none(), text_of(setting)))
        if strongest == "flag":
            words += flags(((setting, text),))
        if strongest == "environment" or (strongest == "flag" and other is not None):
            environ[setting.environment] = text if strongest == "environment" else str(other)
        if strongest == "file" or other is not None:
            content[setting.dest] = text if strongest == "file" else other
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.yaml"
        path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
        arguments = PARSER.parse_args(words)
        arguments.file = read_config(str(path)).check()
        assert resolved(arguments, environ) == resolved(PARSER.parse_args(flags(assignment)), {})
