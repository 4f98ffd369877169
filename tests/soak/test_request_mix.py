"""The traffic of a soak: drawn from its seed alone, of every kind, and what is good is taken by the server's parser."""

import json
from collections import Counter

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.server.openai.parse_request import read_chat, read_completion
from chairlift.text.chat_template import checked_messages
from chairlift.text.tool_parser import HERMES
from soak.bad_requests import BODIES, CHAT, COMPLETIONS, FIELDS, cases
from soak.fault_injection import FATAL, PLAN
from soak.raw_client import ClientBehavior
from soak.request_mix import KINDS, Order, hasty_order, order

MANY = 1500


def parts(sent: bytes) -> tuple[str, bytes]:
    """Return the path and the body of a request."""
    head, _, body = sent.partition(b"\r\n\r\n")
    return head.split()[1].decode(), body


def test_a_seed_and_a_number_say_everything() -> None:
    for draw in (order, hasty_order):
        assert [draw(1, number, "k") for number in range(50)] == [draw(1, number, "k") for number in range(50)]
        assert [draw(1, number, "k") for number in range(50)] != [draw(2, number, "k") for number in range(50)]


def test_every_kind_and_manner_comes_and_those_in_haste_take_no_time() -> None:
    drawn = [order(1, number, "k") for number in range(MANY)]
    kinds = Counter("bad" if each.kind.startswith("bad") else each.kind for each in drawn)
    assert len(kinds) == len(KINDS) and {each.manner for each in drawn} == set(ClientBehavior)
    assert len({each.kind for each in drawn if each.kind.startswith("bad")}) > 40
    hasty = [hasty_order(1, number, "k") for number in range(MANY)]
    assert {each.manner for each in hasty} <= {ClientBehavior.STAYS, ClientBehavior.LEAVES, ClientBehavior.RESETS}


def is_taken(each: Order) -> bool:
    path, body = parts(each.sent)
    try:
        if path == CHAT:
            checked_messages(read_chat(json.loads(body), HERMES).messages)
        elif path == COMPLETIONS:
            read_completion(json.loads(body))
    except InvalidRequest:
        return False
    return True


def test_what_is_not_bad_is_taken() -> None:
    for number in range(MANY):
        each = order(1, number, "k")
        assert each.kind.startswith("bad: ") or is_taken(each), each


def test_schemas_are_new_every_time() -> None:
    schemas = [
        json.dumps(json.loads(parts(each.sent)[1])["response_format"])
        for number in range(MANY) if (each := order(1, number, "k")).kind == "new JSON schema"
    ]  # fmt: skip
    assert len(schemas) > 50 and len(set(schemas)) == len(schemas)


def test_bad_input_is_of_many_kinds() -> None:
    found = cases("k")
    assert len({name.split()[0] for name in found}) >= 45 and {*BODIES, *FIELDS} <= {*found}
    assert {status for _, status in found.values()} >= {200, 400, 401, 403, 404, 405, 413, 415, 431}


@pytest.mark.parametrize("name", FIELDS)
def test_a_bad_field_is_one_by_itself(name: str) -> None:
    """Of those that the parser alone can see."""
    seen_later = ("29", "30", "38 vocabulary", "39", "41", "44 schema", "44 regex", "44 lookahead", "51")
    each = Order(name, cases("k")[name][0])
    assert is_taken(each) is name.startswith(seen_later)


def test_engines_die_in_the_first_third_alone_and_not_too_often() -> None:
    shares = [share for share, _ in PLAN]
    assert shares == sorted(shares) and all(0 < share < 1 for share in shares)
    assert 2 <= sum(what in FATAL for _, what in PLAN) < 5, "the fifth death in five minutes is the last"
    assert all(share < 1 / 3 for share, what in PLAN if what in FATAL)
