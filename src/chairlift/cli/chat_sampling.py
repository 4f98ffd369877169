"""ChatSampling: the sampling settings of a terminal chat, which /set changes, resets and lists."""

import argparse
import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from chairlift.cli.settings import settings
from chairlift.cli.settings.setting_declaration import Setting
from chairlift.core.errors import ConfigError
from chairlift.core.sampling_params import FLOAT_BOUNDS, INT_BOUNDS, MODEL_DEFAULTS, SamplingParams

_NAME_AND_VALUE = re.compile(r"(?:parameter\s+)?(?P<name>[^\s=]*)(?:=\s*|\s+=\s+|\s+)?(?P<value>.*)", re.DOTALL)
"""NAME VALUE, NAME=VALUE, NAME = VALUE, or as Ollama has it, parameter NAME VALUE."""

SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in settings.CHAT_SETTINGS}


class ChatSampling:
    """The sampling settings that differ from the defaults.

    Attributes:
        values: their values by name.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Check the values. Raises InvalidRequest."""
        self.values = dict(values)
        SamplingParams(**{**MODEL_DEFAULTS, **self.values})

    def set(self, text: str) -> str:
        """Set a setting to a value, NAME VALUE, or reset it, NAME; returns the sentence about what changed.

        Raises ConfigError and InvalidRequest; nothing is changed then.
        """
        match = _NAME_AND_VALUE.fullmatch(text.strip())
        assert match is not None, "the pattern matches every text"
        setting, value = _setting_named(match["name"].replace("-", "_").lower()), match["value"]
        before = self._text(setting)
        if not value:
            self.values.pop(setting.name, None)
            return f"{setting.name} is reset to the default ({_default_text(setting)}); it was {before}"
        changed = self.values | {setting.name: _parsed(setting, value)}
        SamplingParams(**{**MODEL_DEFAULTS, **changed})
        self.values = changed
        return f"{setting.name} is {self._text(setting)}; it was {before}"

    def lines(self) -> Iterator[str]:
        """Yield a line for each setting with its present value."""
        for setting in SETTINGS.values():
            yield f"  {setting.name:<20} {self._text(setting)}"

    def _text(self, setting: Setting) -> str:
        if setting.name not in self.values:
            return f"the default ({_default_text(setting)})"
        value = self.values[setting.name]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _setting_named(name: str) -> Setting:
    if name in SETTINGS:
        return SETTINGS[name]
    similar = difflib.get_close_matches(name, SETTINGS, n=1)
    if name:
        similar = [each for each in SETTINGS if each.startswith(name)] or similar
    hint = f"did you mean {similar[0]}?" if similar else f"available are {', '.join(SETTINGS)}"
    raise ConfigError(f"unknown setting {name!r}; {hint}")


def _parsed(setting: Setting, text: str) -> Any:
    """Return the value of a text. Raises ConfigError with the range of the setting."""
    try:
        value = setting.parse(text)
    except argparse.ArgumentTypeError as error:
        bounds = FLOAT_BOUNDS.get(setting.name) or INT_BOUNDS.get(setting.name)
        limits = f"; it is from {bounds[0]} to {bounds[1]}" if bounds else ""
        raise ConfigError(f"{setting.name} {error}{limits}") from None
    return [value] if setting.is_repeatable else value


def _default_text(setting: Setting) -> str:
    return setting.default_text or (str(setting.default) if setting.default != "" else "none")
