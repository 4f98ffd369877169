"""Value parsers: convert the text of a flag, variable or file to a setting's value.

Each takes the text and returns the value. For a text that is not valid it raises ArgumentTypeError with a message that
follows the name of the setting: "must be an integer, got 'x'".
"""

import argparse
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

ValueParser = Callable[[str], Any]
Name = TypeVar("Name")
STRUCTURED_KINDS = ("json_schema", "regex", "grammar", "choice")
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def integer(text: str) -> int:
    """Parse an integer."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer, got {text!r}") from None


def num_tokens(text: str) -> int:
    """Parse a number of tokens or bytes such as 8192, 8k (8000) or 8K (8192); M and G work alike."""
    match = re.fullmatch(r"([+-]?\d+|\d+\.\d+)([kKmMgG]?)", text.strip())
    if match is None or ("." in match[1] and not match[2]):
        raise argparse.ArgumentTypeError(f"must be a number of tokens such as 8192, 8k or 8K, got {text!r}")
    power = "kmg".find(match[2].lower()) + 1 if match[2] else 0
    return int(float(match[1]) * (1000 if match[2].islower() else 1024) ** power) if power else integer(match[1])


def num_tokens_or_auto(text: str) -> int | str:
    """Parse a number of tokens, or auto, for which vLLM also takes -1."""
    if text.strip().lower() in ("auto", "-1"):
        return "auto"
    try:
        return num_tokens(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"must be a number of tokens such as 8192, 8k or 8K, or auto, got {text!r}"
        ) from None


def scheduling_policy(text: str) -> str:
    """Parse the name of a scheduling policy; vLLM's fcfs is fifo."""
    return "fifo" if text == "fcfs" else text


def number(text: str) -> float:
    """Parse a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None


def boolean(text: str) -> bool:
    """Parse one of the words for true and false."""
    if text.lower() not in TRUE + FALSE:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(TRUE + FALSE)}, got {text!r}")
    return text.lower() in TRUE


def fraction_or_bytes(text: str) -> float | int:
    """Parse a fraction such as 0.8, or a size such as 4000000000, 4GiB or 500MB."""
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
    amount = text.strip().upper()
    try:
        for unit, size in units.items():
            if amount.endswith(unit):
                return int(float(amount.removesuffix(unit)) * size)
        fraction = int(amount) if amount.isdecimal() and amount != "1" else float(amount)
        if not -math.inf < fraction < math.inf:
            raise ValueError
        return fraction
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"must be a fraction such as 0.8 or a size such as 4GiB, got {text!r}"
        ) from None


def num_bytes(text: str) -> int:
    """Parse a size such as 50000000, 50MB or 64MiB."""
    try:
        amount = fraction_or_bytes(text)
    except argparse.ArgumentTypeError:
        amount = math.nan
    if isinstance(amount, float) and not amount.is_integer():
        raise argparse.ArgumentTypeError(f"must be a size in bytes such as 50MB, got {text!r}")
    return int(amount)


def duration(text: str) -> int:
    """Parse a time such as 90, 90s, 15m, 12h or 30d into seconds."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    amount = text.strip()
    seconds = units.get(amount[-1:], 0)
    digits = amount[:-1] if seconds else amount
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 9:
        raise argparse.ArgumentTypeError(f"must be a time such as 90s, 15m, 12h or 30d, got {text!r}")
    return int(digits) * (seconds or 1)


def numbers(text: str) -> tuple[float, ...]:
    """Parse comma-separated numbers."""
    return tuple(number(part) for part in text.split(","))


def token_ids(text: str) -> tuple[int, ...]:
    """Parse comma-separated token ids."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be token ids such as 1,2, got {text!r}") from None


def token_biases(text: str) -> dict[int, float]:
    """Parse comma-separated ID=BIAS pairs."""
    return dict(_pairs(text, int, "pairs of token id and bias such as 5=-1,6=2.5"))


def named_shares(text: str) -> dict[str, float]:
    """Parse comma-separated NAME=SHARE pairs; a name alone has the share 1."""
    return dict(_pairs(text, str, "pairs of name and share such as gold=2,silver=1", default=1.0))


def slo_limits(text: str) -> dict[str, float]:
    """Parse comma-separated NAME=SECONDS pairs."""
    return dict(_pairs(text, str.strip, "pairs of name and seconds such as ttft=0.5,tpot=0.05"))


def named_factories(text: str) -> dict[str, str]:
    """Parse comma-separated NAME=MODULE:FUNCTION pairs; a name alone has an empty path."""
    pairs = [part.partition("=") for part in text.split(",")]
    return {name: path for name, _, path in pairs}


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text[:80]!r}")
    return value


def structured_output(text: str) -> dict[str, Any]:
    """Parse KIND=TEXT or KIND=@FILE into the fields of a StructuredOutput."""
    kind, equals, value = text.partition("=")
    if kind == "json_object" and not equals:
        return {kind: True}
    if kind not in STRUCTURED_KINDS or not equals:
        kinds = ", ".join(f"{name}=TEXT" for name in STRUCTURED_KINDS)
        raise argparse.ArgumentTypeError(f"must be json_object or one of {kinds}, got {text!r}")
    if kind == "choice":
        return {kind: value.split("|")}
    if value.startswith("@"):
        try:
            with open(value[1:], encoding="utf-8") as file:
                value = file.read()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise argparse.ArgumentTypeError(f"names a file that cannot be read: {value[1:]}: {reason}") from None
    return {kind: value}


@dataclass(frozen=True, slots=True)
class OneOf:
    """Parser of one name out of a list.

    Attributes:
        names: the valid names.
    """

    names: tuple[str, ...]

    def __call__(self, text: str) -> str:
        """Parse one of the names."""
        if text not in self.names:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(self.names)}, got {text!r}")
        return text


def one_of(*names: str) -> OneOf:
    """Return the parser of one of these names."""
    return OneOf(names)


def _pairs(
    text: str, parse_name: Callable[[str], Name], expected: str, *, default: float | None = None
) -> Iterator[tuple[Name, float]]:
    """Yield comma-separated NAME=NUMBER pairs; a name alone has the default, if there is one.

    Raises ArgumentTypeError for another text.
    """
    for part in text.split(","):
        name, equals, value = part.partition("=")
        try:
            yield parse_name(name), float(value) if equals or default is None else default
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {expected}, got {part!r}") from None


LIST_PARSERS: tuple[ValueParser, ...] = (token_ids, numbers)
"""Parsers whose value a settings file may give as a list: [1, 2] is "1,2"."""

MAPPING_PARSERS: tuple[ValueParser, ...] = (token_biases, named_factories, slo_limits, named_shares)
"""Parsers whose value a settings file may give as a mapping: {gold: 2} is "gold=2"."""

_DESCRIPTIONS: Mapping[ValueParser, str] = {
    str: "text", scheduling_policy: "the name of a policy", integer: "an integer",
    num_tokens: "an integer, also as 8k or 8K", num_tokens_or_auto: "an integer, also as 8k or 8K, or auto",
    number: "a number", boolean: "true or false",
    duration: "a time such as 12h", num_bytes: "a size in bytes such as 50MB",
    fraction_or_bytes: "a fraction such as 0.8 or a size such as 4GiB",
    token_ids: "token ids", token_biases: "biases by token id", named_factories: "MODULE:FUNCTION by name",
    named_shares: "shares by name", numbers: "numbers", slo_limits: "seconds by name",
    json_object: "a JSON object in quotes",
    structured_output: "json_object, or json_schema, regex, grammar or choice with its text",
}  # fmt: skip


def describe_parser(parse: ValueParser) -> str:
    """Return what a parser's value is, in words: "an integer"."""
    if isinstance(parse, OneOf):
        return f"one of {', '.join(parse.names)}"
    return _DESCRIPTIONS.get(parse, "text")
