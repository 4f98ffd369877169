"""add_foreign_flags: declares the flags of other servers to a command's parser, and describes them in its help."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.cli.arg_parser import Parser, UsageError
from chairlift.cli.settings.foreign_flag import ForeignFlag
from chairlift.cli.settings.foreign_flag_table import ALIASES, FOREIGN_FLAGS, WITHOUT_EFFECT
from chairlift.cli.settings.foreign_value_parsers import EntryOfObject
from chairlift.cli.settings.setting_declaration import Setting
from chairlift.core.foreign_options import OptionEffect

MODEL_DEST = "model_flag"
"""Attribute of argparse's namespace for a model that a flag names; the positional MODEL has its own."""

HELP_TITLE = "flags of vLLM, SGLang and llama.cpp (docs/flags.md lists all):"


class ServerFlagAction(argparse.Action):
    """Sets the setting of an alias, notes a flag without effect, or raises UsageError for a rejected one."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, *, row: ForeignFlag, setting: Setting | None, **options: Any
    ) -> None:
        super().__init__(option_strings, dest, **options)
        self.row = row
        self._setting = setting

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any,
        option_string: str | None = None,
    ) -> None:  # fmt: skip
        """Apply the flag; `values` is the parsed value, empty for a switch."""
        row, option, flag = self.row, self.row.option, str(option_string)
        if row.is_rejected:
            raise UsageError(f"{flag} is not supported: {option.reason}")
        if option.effect is OptionEffect.NONE:
            _note(namespace, f"{flag} has no effect: {option.reason}")
            return
        if option.effect is OptionEffect.REFUSED:
            if values not in option.neutral:
                raise UsageError(f"{flag} {values} is not supported: {option.reason}")
            return
        value = values if row.metavar else row.constant
        if self._setting is not None and self._setting.is_repeatable:
            value = [*(getattr(namespace, self.dest, None) or []), *(value if isinstance(value, list) else [value])]
        if isinstance(row.parse, EntryOfObject):
            _keep_entry(namespace, self.dest, value, flag)
        else:
            _set_by_flag(namespace, self.dest, value, flag)
        if option.reason:
            _note(namespace, f"{flag} is --{option.setting.replace('_', '-')}: {option.reason}")


def _note(namespace: argparse.Namespace, sentence: str) -> None:
    namespace.flag_notes = [*getattr(namespace, "flag_notes", ()), sentence]


def _set_by_flag(namespace: argparse.Namespace, dest: str, value: Any, flag: str) -> None:
    """Set a setting, and which flag has set it, for errors."""
    setattr(namespace, dest, value)
    namespace.written_flags = getattr(namespace, "written_flags", {}) | {dest: flag}


def _keep_entry(namespace: argparse.Namespace, dest: str, entry: Mapping[str, Any], flag: str) -> None:
    """Keep one key of an object for merge_entries(), with the flag that sets it."""
    if not hasattr(namespace, "flag_entries"):
        namespace.flag_entries = {}
    namespace.flag_entries.setdefault(dest, []).append((entry, flag))


def add_foreign_flags(parser: Parser, *, in_help: bool = False) -> None:
    """Declare the flags whose settings the command has, and those without effect or support.

    A flag that the command itself has keeps its own meaning. `in_help=True` describes the aliases in the help's end.
    """
    settings = {setting.dest: setting for setting in parser.settings}
    for row in FOREIGN_FLAGS:
        if row.option.setting and row.option.setting not in settings:
            continue
        for flag in row.flags:
            if flag not in parser._option_string_actions:
                _add(parser, flag, row, settings.get(row.option.setting))
    if in_help:
        parser.epilog = f"{parser.epilog or ''}\n\n{help_section(settings)}".strip()


def _add(parser: Parser, flag: str, row: ForeignFlag, setting: Setting | None) -> None:
    options: dict[str, Any] = {"nargs": 0}
    if row.is_rejected:
        options = {"nargs": "?"}
    elif row.metavar:
        parse = row.parse or (setting.parse if setting is not None else str)
        options = {"type": parse, "metavar": row.metavar}
    dest = MODEL_DEST if row.option.setting == "model" else row.option.setting or "flag_notes"
    parser.add_argument(
        flag, action=ServerFlagAction, dest=dest, row=row, setting=setting, default=argparse.SUPPRESS,
        help=argparse.SUPPRESS, **options,
    )  # fmt: skip


def merge_model(arguments: argparse.Namespace) -> None:
    """Set `arguments.model` to the model that a flag names. Raises UsageError if MODEL is given, too.

    Without either, the last word behind a flag that takes several values is the model.
    """
    named = getattr(arguments, MODEL_DEST, None)
    if named is None:
        if getattr(arguments, "model", "") is None and hasattr(arguments, "possible_model"):
            dest, index = arguments.possible_model
            arguments.model = getattr(arguments, dest).pop(index)
        return
    if arguments.model is not None:
        raise UsageError(f"MODEL is {arguments.model} and --model is {named}; give one of them")
    arguments.model = named


def merge_entries(arguments: argparse.Namespace) -> None:
    """Add the keys that flags of their own set to the objects of their settings, wherever those stand in the line."""
    for dest, entries in getattr(arguments, "flag_entries", {}).items():
        value, flags = dict(getattr(arguments, dest, None) or {}), dict.fromkeys(flag for _, flag in entries)
        written = [f"--{dest.replace('_', '-')}", *flags] if value else [*flags]
        for entry, _ in entries:
            value |= entry
        _set_by_flag(arguments, dest, value, ", ".join(written))


def help_section(dests: dict[str, Setting]) -> str:
    """Return the lines of --help about the flags of other servers, one for each setting."""
    by_dest: dict[str, list[str]] = {}
    for row in ALIASES:
        if row.option.setting in dests:
            by_dest.setdefault(row.option.setting, []).extend(row.flags)
    by_flag = {dests[dest].flag: flags for dest, flags in by_dest.items()}
    by_flag["without effect"] = [flag for row in WITHOUT_EFFECT for flag in row.flags]
    return "\n".join([HELP_TITLE, *(f"  {flag:<24}  {', '.join(flags)}" for flag, flags in by_flag.items())])
