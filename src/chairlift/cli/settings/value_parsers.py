"""Kinds: what the text of an option, of a variable or of a file of settings is read as.

Each takes text and returns its value, or raises ArgumentTypeError with what it must be and what came.
"""

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Kind = Callable[[str], Any]
STRUCTURES = ("json_schema", "regex", "grammar", "choice")
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def whole(text: str) -> int:
    """Read an integer."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer, got {text!r}") from None


def number(text: str) -> float:
    """Read a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None


def share_or_bytes(text: str) -> float | int:
    """Read a share such as 0.8, or bytes such as 4000000000, 4GiB, 500MB."""
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
    amount = text.strip().upper()
    try:
        for unit, size in units.items():
            if amount.endswith(unit):
                return int(float(amount.removesuffix(unit)) * size)
        share = int(amount) if amount.isdecimal() and amount != "1" else float(amount)
        if not -math.inf < share < math.inf:
            raise ValueError
        return share
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"must be a share like 0.8 or bytes like 4GiB, got {text!r}") from None


def flag(text: str) -> bool:
    """Read a yes or no of the environment."""
    if text.lower() not in TRUE + FALSE:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(TRUE + FALSE)}, got {text!r}")
    return text.lower() in TRUE


def ids(text: str) -> tuple[int, ...]:
    """Read token ids with commas between them."""
    return tuple(whole(part) for part in text.split(","))


def biases(text: str) -> dict[int, float]:
    """Read ID=BIAS pairs with commas between them."""
    pairs = [part.partition("=") for part in text.split(",")]
    return {whole(token): number(bias) for token, _, bias in pairs}


def structure(text: str) -> dict[str, Any]:
    """Read KIND=TEXT, or KIND=@FILE, of a StructuredOutput."""
    kind, equals, value = text.partition("=")
    if kind == "json_object" and not equals:
        return {kind: True}
    if kind not in STRUCTURES or not equals:
        raise argparse.ArgumentTypeError(f"must be json_object or one of {', '.join(STRUCTURES)} with =, got {text!r}")
    if kind == "choice":
        return {kind: value.split("|")}
    if value.startswith("@"):
        try:
            with open(value[1:], encoding="utf-8") as file:
                value = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise argparse.ArgumentTypeError(f"cannot read {value[1:]}: {error}") from None
    return {kind: value}


def factories(text: str) -> dict[str, str]:
    """Read NAME=MODULE:FUNCTION pairs with commas between them."""
    pairs = [part.partition("=") for part in text.split(",")]
    return {name: where for name, _, where in pairs}


def size(text: str) -> int:
    """Read bytes such as 50000000, 50MB or 64MiB."""
    amount = share_or_bytes(text)
    if isinstance(amount, float) and not amount.is_integer():
        raise argparse.ArgumentTypeError(f"must be bytes like 50MB, got {text!r}")
    return int(amount)


@dataclass(frozen=True, slots=True)
class OneOf:
    """Reads one of some names.

    Attributes:
        names: those that there are.
    """

    names: tuple[str, ...]

    def __call__(self, text: str) -> str:
        """Read it."""
        if text not in self.names:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(self.names)}, got {text!r}")
        return text


def one_of(*names: str) -> OneOf:
    """Make what reads one of these names."""
    return OneOf(names)


def numbers(text: str) -> tuple[float, ...]:
    """Read numbers with commas between them."""
    return tuple(number(part) for part in text.split(","))


def goals(text: str) -> dict[str, float]:
    """Read NAME=SECONDS pairs with commas between them."""
    pairs = [part.partition("=") for part in text.split(",")]
    return {name.strip(): number(limit) for name, _, limit in pairs}


def shares(text: str) -> dict[str, float]:
    """Read NAME=SHARE pairs with commas between them; a name alone has the share 1."""
    pairs = [part.partition("=") for part in text.split(",")]
    return {name: number(share) if equals else 1.0 for name, equals, share in pairs}


LISTS: tuple[Kind, ...] = (ids, numbers)
"""Kinds that a file of settings may give as a list: [1, 2] is "1,2"."""

PAIRS: tuple[Kind, ...] = (biases, factories, goals, shares)
"""Kinds that it may give as a mapping: {gold: 2} is "gold=2"."""

_SAID: Mapping[Kind, str] = {
    str: "text", whole: "an integer", number: "a number", flag: "true or false", size: "bytes, such as 50MB",
    share_or_bytes: "a share like 0.8, or bytes like 4GiB", ids: "token ids", biases: "biases by token id",
    factories: "MODULE:FUNCTION by name", shares: "shares by name", numbers: "numbers",
    goals: "seconds by name",
    structure: "json_object, or json_schema, regex, grammar or choice with its text",
}  # fmt: skip


def said(kind: Kind) -> str:
    """Return what a kind reads, in words: "an integer"."""
    if isinstance(kind, OneOf):
        return f"one of {', '.join(kind.names)}"
    return _SAID.get(kind, "text")
