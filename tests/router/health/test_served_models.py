"""parse_models: models, adapters and fingerprints of several servers; nonsense is refused, long lists are cut."""

import pytest

from chairlift.router.health.served_models import parse_models
from support_shares import for_each


def test_models_adapters_and_fingerprints_are_read() -> None:
    served = parse_models(
        {
            "object": "list",
            "data": [
                {"id": "base", "object": "model", "fingerprint": "f1", "max_model_len": 4096},
                {
                    "id": "sql",
                    "object": "model",
                    "root": "x",
                    "parent": "base",
                    "details": {"dtype": "int8", "capabilities": ["tools", "x"], "unknown": 1},
                },
                {"id": "base"},
                {"id": "other", "parent": None, "fingerprint": 7, "max_model_len": True},
                *({"id": f"m{n}", "max_model_len": value} for n, value in enumerate((0, -1, "8", 1e3, None, 10**13))),
            ],
        }
    )
    assert served.names[:3] == ("base", "sql", "other") and served.max_model_lens == {"base": 4096}
    assert served.details == {"sql": {"dtype": "int8", "capabilities": ["tools"]}}
    assert served.adapters == {"sql"} and served.fingerprints == {"base": "f1"}


def test_an_empty_list_is_a_server_without_models() -> None:
    assert parse_models({"object": "list", "data": []}).names == ()


@for_each("body", [None, [], {}, {"data": None}, {"data": {}}, {"data": [{"id": 7}, "x"]}, {"data": [{"id": ""}]}])
def test_nonsense_is_refused(body: object) -> None:
    with pytest.raises(ValueError, match="/v1/models"):
        parse_models(body)


def test_what_cannot_be_read_is_left_out_and_the_list_is_bounded() -> None:
    names = [{"id": f"m{number}"} for number in range(5000)]
    assert len(parse_models({"data": [{"id": "x" * 300}, None, *names]}).names) == 998
