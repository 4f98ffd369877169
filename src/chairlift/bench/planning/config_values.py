"""ConfigValues: typed reads of the fields of a decoder's config.json, with errors that name the field."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.core.errors import ConfigError
from chairlift.core.numeric_limits import MAX_INT32

TEXT_PARTS = ("text_config", "llm_config", "language_config")
"""Fields that hold the decoder of a model with other inputs."""


def invalid_model(reason: str) -> ConfigError:
    """Return the error for a config.json that cannot be planned for."""
    return ConfigError(f"config.json: {reason}", option="model")


@dataclass(frozen=True, slots=True)
class ConfigValues:
    """The fields of a decoder.

    Attributes:
        content: the decoder's object.
        architectures: `architectures` of the whole file.
        is_part: the decoder is the text part of a model with other inputs, whose parameters are not counted.
    """

    content: Mapping[str, Any]
    architectures: tuple[str, ...]
    is_part: bool

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "ConfigValues":
        """Return the fields of the decoder in config.json. Raises ConfigError for an encoder-decoder."""
        names = content.get("architectures")
        architectures = tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()
        if content.get("is_encoder_decoder") is True:
            raise invalid_model("the model is an encoder-decoder; plans are for models that predict the next token")
        part = next((content[name] for name in TEXT_PARTS if isinstance(content.get(name), Mapping)), None)
        if part is None:
            return cls(content, architectures, False)
        return cls({**content, **part}, architectures, True)

    def __contains__(self, name: str) -> bool:
        return self.content.get(name) is not None

    @property
    def model_type(self) -> str:
        """`model_type`, or "" without one."""
        return str(self.content.get("model_type") or "")

    @property
    def dtype(self) -> str | None:
        """The name of the dtype, or None without one."""
        name = self.content.get("dtype") or self.content.get("torch_dtype")
        return name.removeprefix("torch.") if isinstance(name, str) else None

    def size(self, name: str, default: int | None = None) -> int:
        """Return an integer of at least 1. Raises ConfigError for another value, or none without a default."""
        value = self.content.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise invalid_model(f"{name} is missing, so the size of the model is unknown")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_INT32:
            raise invalid_model(f"{name} must be an integer between 1 and {MAX_INT32}, got {value!r}")
        return value

    def optional_size(self, name: str) -> int | None:
        """Return an integer of at least 1, or None without one."""
        return self.size(name) if name in self else None

    def count(self, name: str, default: int = 0) -> int:
        """Return an integer of at least 0."""
        value = self.content.get(name)
        return 0 if value == 0 and not isinstance(value, bool) else self.size(name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean."""
        value = self.content.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise invalid_model(f"{name} must be true or false, got {value!r}")
        return value

    def list(self, name: str) -> Sequence[Any] | None:
        """Return a list, or None without one."""
        value = self.content.get(name)
        if value is not None and not isinstance(value, list):
            raise invalid_model(f"{name} must be a list, got {value!r}")
        return value

    def check(self, is_valid: bool, reason: str) -> None:
        """Raise ConfigError with the reason unless is_valid."""
        if not is_valid:
            raise invalid_model(reason)
