"""GivenOptions: the options of one configuration under their names here, checked against the table of options."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chairlift.core.errors import ConfigError, InvalidRequest
from chairlift.core.foreign_options import Check, OptionEffect
from chairlift.llm.transformers_compat.option_names_in_errors import manager_hint
from chairlift.llm.transformers_compat.option_table import (
    BATCHING,
    ENGINE_OPTIONS,
    GENERATION,
    OTHER_SAMPLING,
    OptionPart,
)

log = logging.getLogger("ContinuousBatchingLogger")

ENGINE_NAMES = {
    *(spec.setting or name for name, spec in BATCHING.items() if spec.part is OptionPart.ENGINE), *ENGINE_OPTIONS
}  # fmt: skip
SAMPLING_NAMES = {
    *(spec.setting or name for name, spec in GENERATION.items() if spec.part is OptionPart.SAMPLING), *OTHER_SAMPLING
} - {"seed"}  # fmt: skip

_logged: set[str] = set()


@dataclass(slots=True)
class GivenOptions:
    """Options with an effect.

    Attributes:
        values: by their names here.
        names: name here -> the user's name, of every option.
    """

    values: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def add(self, other: "GivenOptions") -> None:
        """Add options that win over those that are here already."""
        self.values |= other.values
        self.names |= other.names


def read_fields(config: Any, name: str) -> dict[str, Any]:
    """Return the fields of a configuration that are not None. Raises ConfigError for what is not a configuration."""
    if config is None:
        return {}
    if isinstance(config, Mapping):
        values = dict(config)
    elif hasattr(config, "__dict__"):
        values = dict(vars(config))
    elif hasattr(config, "__slots__"):
        values = {each: getattr(config, each) for each in config.__slots__}
    else:
        raise ConfigError(f"{name} must be a configuration or a mapping, got {type(config).__name__}", option=name)
    return {each: value for each, value in values.items() if value is not None}


def effective_options(fields: Mapping[str, Any], *, is_chosen: bool) -> GivenOptions:
    """Return the options with an effect; log or refuse the others.

    With `is_chosen` the user wrote each field, so that a value that is transformers' default counts, too.
    Raises ConfigError for a field that is refused or has an impossible value.
    """
    given = GivenOptions()
    for name, value in fields.items():
        spec = BATCHING.get(name) or GENERATION.get(name)
        if spec is None:
            if name in ENGINE_NAMES or name in SAMPLING_NAMES:
                given.values[name], given.names[name] = value, name
            elif not name.startswith("_"):
                log_once(name, f"it is not known here{manager_hint(name)}")
            continue
        if value is None or (spec.effect is OptionEffect.NONE and not spec.reason):
            continue
        if _is_same(value, spec.default) and not (is_chosen and spec.part is OptionPart.ENGINE):
            continue
        if any(_is_same(value, each) for each in spec.neutral):
            continue
        if spec.effect is OptionEffect.REFUSED:
            raise ConfigError(f"{name}={_format(value)} is not supported: {spec.reason}", option=name)
        if spec.effect is OptionEffect.NONE:
            log_once(name, spec.reason)
            continue
        own = spec.setting or name
        given.values[own] = value if spec.check is None else _checked(name, value, spec.check)
        given.names[own] = name
    return given


def log_once(name: str, reason: str) -> None:
    """Log that an option has no effect, once in the life of the process."""
    if name not in _logged:
        _logged.add(name)
        log.warning("%s has no effect: %s", name, reason)


def _checked(name: str, value: Any, check: Check) -> Any:
    try:
        return check(name, value)
    except InvalidRequest as error:
        raise ConfigError(error.message, option=name) from None


def _format(value: Any) -> str:
    """Return a value for a message, cut."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _is_same(value: Any, other: Any) -> bool:
    return type(value) in (int, float, bool, str, list) and other is not None and bool(value == other)
