"""config_of: makes a config whose fields have other names than their settings."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from chairlift.core.errors import ConfigError

ConfigT = TypeVar("ConfigT")


def config_of(
    make: Callable[..., ConfigT], options: Mapping[str, Any], names: Mapping[str, str], **more: Any
) -> ConfigT:
    """Return a config with the given options under the names of its fields. Raises ConfigError with the option."""
    try:
        return make(**renamed(options, names), **more)
    except ConfigError as error:
        for name, field in names.items():
            if error.message.startswith(f"{field} "):
                message = error.message.removeprefix(field).removeprefix(" of probes")
                raise ConfigError(name + message, option=name) from None
        raise


def renamed(options: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the given options under the names of a config's fields."""
    return {field: options[name] for name, field in names.items() if options.get(name) not in (None, "")}
