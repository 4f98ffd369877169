"""Traffic of a soak test: it follows from its seed, has every kind, and its valid requests pass the server's parser."""

import json
from collections import Counter

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.server.openai.chat_request import read_chat
from chairlift.server.openai.completion_request import read_completion
from chairlift.text.tool_formats.json_calls import HERMES
from soak.bad_requests import BODIES, CHAT, COMPLETIONS, FIELDS, bad_requests
from soak.fault_injection import FATAL, PLAN
from soak.raw_client import ClientBehavior
from soak.request_mix import KIND_WEIGHTS, SoakRequest, make_capacity_request, make_request

NUM_REQUESTS = 1500


def path_and_body(data: bytes) -> tuple[str, bytes]:
    """Return the path and the body of a request."""
    header_block, _, body = data.partition(b"\r\n\r\n")
    return header_block.split()[1].decode(), body


def test_a_seed_and_a_number_say_everything() -> None:
    for make in (make_request, make_capacity_request):
        first = [make(1, number, "k") for number in range(50)]
        assert first == [make(1, number, "k") for number in range(50)]
        assert first != [make(2, number, "k") for number in range(50)]


def test_every_kind_and_behavior_occurs_and_the_capacity_is_measured_without_slow_clients() -> None:
    requests = [make_request(1, number, "k") for number in range(NUM_REQUESTS)]
    kinds = Counter("bad" if each.kind.startswith("bad") else each.kind for each in requests)
    assert len(kinds) == len(KIND_WEIGHTS) and {each.behavior for each in requests} == set(ClientBehavior)
    assert len({each.kind for each in requests if each.kind.startswith("bad")}) > 40
    behaviors = {make_capacity_request(1, number, "k").behavior for number in range(NUM_REQUESTS)}
    assert behaviors <= {ClientBehavior.WAITS, ClientBehavior.DISCONNECTS, ClientBehavior.RESETS}


def is_accepted(request: SoakRequest) -> bool:
    """Return whether the server's parser accepts a request."""
    path, body = path_and_body(request.data)
    try:
        if path == CHAT:
            read_chat(json.loads(body), HERMES)
        elif path == COMPLETIONS:
            read_completion(json.loads(body))
    except InvalidRequest:
        return False
    return True


def test_every_request_that_is_not_bad_input_is_accepted() -> None:
    for number in range(NUM_REQUESTS):
        request = make_request(1, number, "k")
        assert request.kind.startswith("bad: ") or is_accepted(request), request


def test_schemas_are_new_every_time() -> None:
    requests = [make_request(1, number, "k") for number in range(NUM_REQUESTS)]
    bodies = [path_and_body(each.data)[1] for each in requests if each.kind == "new JSON schema"]
    schemas = [json.dumps(json.loads(body)["response_format"]) for body in bodies]
    assert len(schemas) > 50 and len(set(schemas)) == len(schemas)


def test_bad_input_is_of_many_kinds() -> None:
    requests = bad_requests("k")
    assert len({name.split()[0] for name in requests}) >= 45 and {*BODIES, *FIELDS} <= {*requests}
    assert {status for _, status in requests.values()} >= {200, 400, 401, 403, 404, 405, 413, 415, 431}


@pytest.mark.share(12)
@pytest.mark.parametrize("name", FIELDS)
def test_a_bad_field_is_one_by_itself(name: str) -> None:
    """The parser rejects every bad field, except those that only a later check can find."""
    found_later = ("29", "30", "38 vocabulary", "39", "41", "44 regex", "44 lookahead", "51")
    request = SoakRequest(name, bad_requests("k")[name][0])
    assert is_accepted(request) is name.startswith(found_later)


def test_engines_die_in_the_first_third_alone_and_not_too_often() -> None:
    shares = [share for share, _ in PLAN]
    assert shares == sorted(shares) and all(0 < share < 1 for share in shares)
    num_fatal = sum(fault in FATAL for _, fault in PLAN)
    assert 2 <= num_fatal < 5, "the server exits at the fifth engine failure in five minutes"
    assert all(share < 1 / 3 for share, fault in PLAN if fault in FATAL)
