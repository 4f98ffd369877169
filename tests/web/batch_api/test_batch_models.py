"""BatchModels: a batch keeps what its models are, and goes on only with the same ones."""

import pytest

from chairlift.web.batch_api.stored_batch import StoredBatch
from chairlift.web.batch_files.batch_lines import MAX_KEPT_PROBLEMS
from support_batch_api import ScriptedModels


def batch() -> StoredBatch:
    return StoredBatch(
        id="batch_1", tenant="alice", endpoint="/v1/completions", input_file_id="file-1", completion_window="24h",
        metadata={}, created_at=1, expires_at=2,
    )  # fmt: skip


def test_what_is_served_is_kept_and_what_is_not_is_an_error() -> None:
    each, models = batch(), ScriptedModels({"": "a", "alias": "a", "a": "a"})
    models.served().accept(each, {"": 1, "alias": 2})
    assert each.models == {"": "a", "alias": "a"} and each.fingerprint == "f1" and not each.errors
    models.served().accept(each, {"x": 7, **{f"y{number}": number for number in range(200)}})
    assert len(each.errors) == MAX_KEPT_PROBLEMS
    assert (each.errors[0]["code"], each.errors[0]["line"]) == ("invalid_line", 7)
    assert each.errors[0]["message"] == "the model 'x' is not served here; served are , alias, a"


@pytest.mark.parametrize(
    ("names", "fingerprint", "problem"),
    [
        ({"": "a", "alias": "a"}, "f1", ""), ({"": "a", "alias": "b"}, "f1", "this server has 'b'"),
        ({"": "b", "alias": "a"}, "f1", "made for the model 'a', this server has 'b'"),
        ({"": "a"}, "f1", "the model 'alias' is not served here"),
        ({"": "a", "alias": "a"}, "f2", "another model of the name 'a'"),
        ({"": "a", "alias": "a"}, "", "(fingerprint f1)"),
    ],
)  # fmt: skip
def test_why_a_batch_waits(names: dict[str, str], fingerprint: str, problem: str) -> None:
    each, models = batch(), ScriptedModels({"": "a", "alias": "a"})
    models.served().accept(each, {"": 1, "alias": 2})
    models.names, models.fingerprint = names, fingerprint
    found = models.served().problem(each)
    assert problem in found and bool(found) is bool(problem)
    assert not found or found.endswith("; the batch goes on when it is served again, or expires")


def test_a_batch_of_a_router_and_one_of_an_earlier_version_have_no_fingerprint() -> None:
    models = ScriptedModels({"": "a"}, fingerprint="")
    each = batch()
    models.served().accept(each, {"": 1})
    models.fingerprint = "f2"
    assert models.served().problem(each) == "" == models.served().problem(batch())
