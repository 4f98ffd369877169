"""Endpoint: the address of a replica and what its source says about it."""

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from chairlift.core.errors import ConfigError
from chairlift.observability.url_check_and_redaction import without_user_info

MAX_WEIGHT = 1000.0


class ReplicaKind(StrEnum):
    """Whether a replica is a Chairlift server, whose streams can be resumed, or another OpenAI-compatible server."""

    AUTO = "auto"
    CHAIRLIFT = "chairlift"
    OPENAI = "openai"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One replica as a discovery source or a flag names it; two endpoints with one URL are one replica.

    Attributes:
        url: base URL without a path and without a slash at its end: http://10.0.0.7:8000.
        weight: share of the requests relative to the other replicas of a pool, above 0; 0 gets none.
        models: model names that the replica serves; () reads them from its /v1/models.
        kind: which server it is; AUTO finds out by its /version.
        version: label for canaries, any text.
        zone: label of where it runs, any text.
    """

    url: str
    weight: float = 1.0
    models: tuple[str, ...] = ()
    kind: ReplicaKind = ReplicaKind.AUTO
    version: str = ""
    zone: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= MAX_WEIGHT:
            raise ConfigError(f"weight of {self.url} must be between 0 and {MAX_WEIGHT:g}, got {self.weight:g}")

    @classmethod
    def parse(cls, url: str, **fields: object) -> "Endpoint":
        """Return the endpoint of a URL as people write it: `10.0.0.7:8000`, `http://host:8000/`. Raises ConfigError."""
        return cls(url=normalized_url(url), **fields)  # type: ignore[arg-type]


def shown_url(url: str) -> str:
    """Return a replica's URL as people write it, without user name and password."""
    return without_user_info(url) if "://" in url else without_user_info(f"http://{url}").removeprefix("http://")


def normalized_url(url: str) -> str:
    """Return scheme, host and port of a replica's URL in lower case. Raises ConfigError with what is wrong."""
    shown = shown_url(url)
    text = url.strip() if "://" in url else f"http://{url.strip()}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{shown!r} is no URL of a replica: {error}") from None
    has_bad_character = any(character.isspace() or not character.isprintable() for character in text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0 or has_bad_character:
        raise ConfigError(f"{shown!r} is no URL of a replica; it should look like http://10.0.0.7:8000")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise ConfigError(
            f"{shown!r} has more than scheme, host and port; a replica's URL looks like http://10.0.0.7:8000"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    default = 443 if parts.scheme == "https" else 80
    return f"{parts.scheme}://{host}" if port in {None, default} else f"{parts.scheme}://{host}:{port}"
