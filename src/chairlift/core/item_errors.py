"""item_in_errors: errors of one item among many say which item, as in "prompts[3]: prompt has 5000 tokens, ..."."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from chairlift.core.errors import InvalidRequest


@contextmanager
def item_in_errors(name: str, index: int, count: int, own: Collection[str]) -> Iterator[None]:
    """Put `name[index]` in front of the message of an InvalidRequest; its class and its details stay.

    Args:
        name: the list, as the caller knows it.
        index: the item's place in the list, from 0.
        count: items of the list; the only one is not named.
        own: fields in which the items differ; an error of a field that all have in common names no item.
    """
    try:
        yield
    except InvalidRequest as error:
        field = str(error.details.get("param", "")).partition("[")[0].partition(".")[0]
        if count == 1 or (field and field not in own):
            raise
        details = {**error.details, "index": index}
        raise type(error).from_wire(f"{name}[{index}]: {error.message}", details) from error
