"""new_response_id, item_id, response_id_of: the ids of responses and of their items."""

import secrets

ID_BYTES = 24

PREFIX = "resp_"


def new_response_id() -> str:
    """Return an id that cannot be guessed."""
    return PREFIX + secrets.token_hex(ID_BYTES)


def item_id(kind: str, response_id: str, index: int) -> str:
    """Return the id of an output item: it names its response."""
    return f"{kind}_{response_id.removeprefix(PREFIX)}_{index}"


def response_id_of(item: str) -> str:
    """Return the id of the response that an item's id names."""
    _, _, rest = item.partition("_")
    return PREFIX + rest.rpartition("_")[0]
