"""The argument parsers of all commands, for the tests of their declarations."""

import argparse
from collections.abc import Iterator
from typing import Any


def leaf_parsers(parser: Any) -> Iterator[Any]:
    """Yield every parser without subcommands."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield parser
    for action in inner:
        for child in action.choices.values():
            yield from leaf_parsers(child)
