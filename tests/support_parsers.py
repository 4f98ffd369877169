"""Parsers of the whole command line, for the tests of its declarations."""

import argparse
from collections.abc import Iterator
from typing import Any


def leaves(parser: Any) -> Iterator[Any]:
    """Every parser that has no commands under it."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield parser
    for action in inner:
        for child in action.choices.values():
            yield from leaves(child)
