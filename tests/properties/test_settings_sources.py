"""Settings mean the same as a flag, an environment variable or a key of a file."""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.cli.arg_parser import Parser
from chairlift.cli.settings import value_parsers
from chairlift.cli.settings.config_file import read_config
from chairlift.cli.settings.resolve_settings import resolve_group
from chairlift.cli.settings.setting_declaration import Setting
from chairlift.cli.settings.settings import ENGINE, LOGGING, SAMPLING, SERVER
from chairlift.cli.shared_arguments import add_model, add_settings
from support_shares import FULL

ALL = (*SERVER, *ENGINE, *SAMPLING, *LOGGING)
TEXT_VALUES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x85"), min_size=1, max_size=12)
"""Any text; PyYAML writes the line break U+0085 as it is, and reads a space."""

NAMES = st.text("abcxyz0123456789._-", min_size=1, max_size=6)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False).map(repr)
INTEGERS = st.integers(-(10**12), 10**12).map(str)
SIZES = st.builds("{}{}".format, st.integers(0, 10**6), st.sampled_from(["", "KB", "MiB", "gib"]))

TEXTS: dict[Any, st.SearchStrategy[str]] = {
    str: TEXT_VALUES, value_parsers.scheduling_policy: TEXT_VALUES, value_parsers.integer: INTEGERS,
    value_parsers.num_tokens: st.builds("{}{}".format, INTEGERS, st.sampled_from(["", "k", "K", "M"])),
    value_parsers.num_tokens_or_auto: st.one_of(INTEGERS, st.sampled_from(["auto", "-1", "8k"])),
    value_parsers.json_object: st.dictionaries(NAMES, st.one_of(st.booleans(), NAMES), max_size=3).map(json.dumps),
    value_parsers.number: NUMBERS, value_parsers.num_bytes: SIZES,
    value_parsers.boolean: st.sampled_from([*value_parsers.TRUE, *value_parsers.FALSE, "True", "NO"]),
    value_parsers.fraction_or_bytes: st.one_of(SIZES, st.floats(0.01, 1).map(repr)),
    value_parsers.token_ids: st.lists(INTEGERS, min_size=1, max_size=4).map(",".join),
    value_parsers.token_biases: st.dictionaries(INTEGERS, NUMBERS, min_size=1, max_size=3).map(
        lambda pairs: ",".join(f"{token}={bias}" for token, bias in pairs.items())
    ),
    value_parsers.named_shares: st.dictionaries(NAMES, NUMBERS, min_size=1, max_size=3).map(
        lambda pairs: ",".join(f"{name}={share}" for name, share in pairs.items())
    ),
    value_parsers.named_factories: st.dictionaries(NAMES, st.just("m.n:f"), min_size=1, max_size=3).map(
        lambda pairs: ",".join(f"{name}={where}" for name, where in pairs.items())
    ),
    value_parsers.structured_output: st.one_of(
        st.just("json_object"), TEXT_VALUES.filter(lambda text: text[0] != "@").map("regex={}".format),
        st.lists(NAMES, min_size=1).map(lambda names: "choice=" + "|".join(names)),
    ),
}  # fmt: skip


def text_of(setting: Setting) -> st.SearchStrategy[str]:
    parse = setting.parse
    return st.sampled_from(parse.names) if isinstance(parse, value_parsers.OneOf) else TEXTS[parse]


ASSIGNMENTS = st.lists(st.sampled_from(ALL), unique_by=lambda setting: setting.dest, max_size=12).flatmap(
    lambda settings_list: st.tuples(*(st.tuples(st.just(setting), text_of(setting)) for setting in settings_list))
)
Assignment = tuple[tuple[Setting, str], ...]


def flags(assignment: Assignment) -> list[str]:
    """Return the assignment as command-line arguments."""
    args = []
    for setting, text in assignment:
        if setting.parse is value_parsers.boolean:
            args.append(setting.flag if value_parsers.boolean(text) else "--no-" + setting.flag.removeprefix("--"))
        else:
            args.append(f"{setting.flag}={text}")
    return args


def yaml_value(setting: Setting, text: str) -> Any:
    """Return a value in the YAML form that users write, if it has one."""
    if setting.parse is value_parsers.boolean:
        return value_parsers.boolean(text)
    if setting.parse is value_parsers.integer:
        return int(text)
    if setting.parse is value_parsers.number:
        return float(text)
    if setting.parse in value_parsers.LIST_PARSERS:
        value: Any = [int(part) for part in text.split(",")]
    elif setting.parse in value_parsers.MAPPING_PARSERS:
        value = dict(part.split("=", 1) for part in text.split(","))
    else:
        value = text
    return [value] if setting.is_repeatable else value


def make_parser() -> Parser:
    parser = Parser()
    add_model(parser)
    for group in (SERVER, ENGINE, SAMPLING, LOGGING):
        add_settings(parser, "", group)
    return parser


PARSER = make_parser()


def resolve(arguments: argparse.Namespace, environ: dict[str, str]) -> dict[str, Any]:
    groups = {"server": SERVER, "engine": ENGINE, "sampling": SAMPLING, "logging": LOGGING}
    return {title: resolve_group(group, arguments, environ) for title, group in groups.items()}


def from_file(content: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.yaml"
        path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
        arguments = PARSER.parse_args([])
        arguments.settings_file = read_config(str(path)).check()
        return resolve(arguments, {})


@pytest.mark.full
@settings(deadline=None)
@given(ASSIGNMENTS)
def test_an_assignment_means_the_same_wherever_it_stands(assignment: Assignment) -> None:
    by_flags = resolve(PARSER.parse_args(flags(assignment)), {})
    assert sum(map(len, by_flags.values())) == len(assignment)
    by_variables = resolve(PARSER.parse_args([]), {setting.variable: text for setting, text in assignment})
    assert by_variables == by_flags
    assert from_file({setting.dest: text for setting, text in assignment}) == by_flags
    kebab_case = {setting.dest.replace("_", "-"): yaml_value(setting, text) for setting, text in assignment}
    assert from_file(kebab_case) == by_flags


@settings(max_examples=100 if FULL else 40, deadline=None)
@given(ASSIGNMENTS, st.data())
def test_it_does_not_matter_how_it_is_spread(assignment: Assignment, data: st.DataObject) -> None:
    """Each setting has its value in one source, and possibly other values in sources of lower priority."""
    args, environ, content = list[str](), dict[str, str](), dict[str, Any]()
    for setting, text in assignment:
        strongest = data.draw(st.sampled_from(["flag", "environment", "file"]))
        other = data.draw(st.one_of(st.none(), text_of(setting)))
        if strongest == "flag":
            args += flags(((setting, text),))
        if strongest == "environment" or (strongest == "flag" and other is not None):
            environ[setting.variable] = text if strongest == "environment" else str(other)
        if strongest == "file" or other is not None:
            content[setting.dest] = text if strongest == "file" else other
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.yaml"
        path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
        arguments = PARSER.parse_args(args)
        arguments.settings_file = read_config(str(path)).check()
        assert resolve(arguments, environ) == resolve(PARSER.parse_args(flags(assignment)), {})
