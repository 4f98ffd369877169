"""parse_endpoint: an endpoint from the fields that a file, a registry's record or a URL's options give."""

import difflib
from collections.abc import Mapping
from typing import Any

from chairlift.core.errors import ConfigError
from chairlift.router.endpoint import Endpoint, ReplicaKind

ENDPOINT_FIELDS = ("url", "weight", "models", "kind", "version", "zone")
OPTION_FIELDS = ("weight", "models", "kind", "version", "zone")
"""The fields that every replica of a source may get from the options of the source's URL."""

MAX_TEXT_CHARS = 512
MAX_MODELS = 1000


def parse_endpoint(fields: Mapping[str, Any]) -> Endpoint:
    """Return the endpoint with these fields, whose numbers and lists may also be text.

    Raises ConfigError that names the field and its value.
    """
    if "url" not in fields:
        raise ConfigError("a replica needs a url such as http://10.0.0.7:8000")
    return Endpoint.parse(
        _text(fields, "url"), weight=_weight(fields.get("weight", 1.0)), models=_models(fields.get("models", ())),
        kind=_kind(fields.get("kind", ReplicaKind.AUTO)), version=_text(fields, "version"), zone=_text(fields, "zone"),
    )  # fmt: skip


def check_names(names: Mapping[str, Any]) -> None:
    """Raise ConfigError for a field that no endpoint has."""
    for name in names:
        if name not in ENDPOINT_FIELDS:
            similar = difflib.get_close_matches(str(name), ENDPOINT_FIELDS, n=1)
            hint = f"did you mean {similar[0]}?" if similar else f"the fields are {', '.join(ENDPOINT_FIELDS)}"
            raise ConfigError(f"a replica has no field {str(name)[:80]!r}; {hint}")


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name, "")
    if isinstance(value, int | float) and not isinstance(value, bool) and name == "version":
        return str(value)
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be text, got {str(value)[:80]!r}")
    if len(value) > MAX_TEXT_CHARS or not value.isprintable():
        raise ConfigError(f"{name} must be at most {MAX_TEXT_CHARS} printable characters, got {value[:80]!r}")
    return value


def _weight(value: Any) -> float:
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(value)  # Endpoint checks the bounds
    except (TypeError, ValueError):
        raise ConfigError(f"weight must be a number, got {str(value)[:80]!r}") from None


def _models(value: Any) -> tuple[str, ...]:
    models = tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value
    if not isinstance(models, list | tuple) or not all(isinstance(each, str) and each for each in models):
        raise ConfigError(f"models must be a list of names, got {str(value)[:80]!r}")
    if len(models) > MAX_MODELS:
        raise ConfigError(f"models has {len(models)} names, the limit is {MAX_MODELS}")
    return tuple(models)


def _kind(value: Any) -> ReplicaKind:
    try:
        return ReplicaKind(value)
    except ValueError:
        raise ConfigError(f"kind must be one of {', '.join(ReplicaKind)}, got {str(value)[:80]!r}") from None
