"""BatchModels: a batch keeps what its models are, and goes on only with the same ones."""

import pytest

from chairlift.core.errors import InvalidRequest, ModelNotFound
from chairlift.web.batch_api.batch_models import BatchModels
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
    assert models.served().accept(each, {"": 1, "alias": 2}, 0.0) == ""
    assert each.models == {"": "a", "alias": "a"} and each.fingerprint == "f1" and not each.errors
    assert models.served().accept(each, {"x": 7, **{f"y{number}": number for number in range(200)}}, 0.0) == ""
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
    models.served().accept(each, {"": 1, "alias": 2}, 0.0)
    models.names, models.fingerprint = names, fingerprint
    found = models.served().problem(each)
    assert problem in found and bool(found) is bool(problem)
    assert not found or found.endswith("; the batch goes on when it is served again, or expires")


def test_a_batch_of_a_router_and_one_of_an_earlier_version_have_no_fingerprint() -> None:
    models = ScriptedModels({"": "a"}, fingerprint="")
    each = batch()
    models.served().accept(each, {"": 1}, 0.0)
    models.fingerprint = "f2"
    assert models.served().problem(each) == "" == models.served().problem(batch())


def routed(models: ScriptedModels, *, is_held: bool = False) -> BatchModels:
    """Return the models of a router that waits 300 s for one, and holds requests while it knows none."""
    return BatchModels(
        models.resolve, has_models=lambda: bool(models.names), is_held=lambda: is_held and not models.names,
        wait_seconds=300.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("names", "waited_seconds", "waits"),
    [({}, 0, True), ({}, 9999, True), ({"b": "b"}, 0, True), ({"b": "b"}, 299, True), ({"b": "b"}, 300, False)],
)
def test_a_router_waits_for_a_model_before_it_fails_a_batch(
    names: dict[str, str], waited_seconds: float, waits: bool
) -> None:  # fmt: skip
    each, models = batch(), ScriptedModels(names)
    found = routed(models).accept(each, {"a": 3}, waited_seconds)
    assert bool(found) is waits and bool(each.errors) is not waits and not each.models
    assert not waits or ("'a' is not served here" in found and found.endswith("; the batch begins when it is served"))
    models.names = {"a": "a"}
    again = batch()
    assert routed(models).accept(again, {"a": 3}, waited_seconds) == "" and again.models == {"a": "a"}


def test_a_name_of_several_models_is_not_waited_for() -> None:
    def resolve(name: str) -> str:
        raise InvalidRequest("name one of a, b", param="model")

    each = batch()
    assert BatchModels(resolve, has_models=lambda: False, wait_seconds=300.0).accept(each, {"": 2}, 0.0) == ""
    assert each.errors[0]["line"] == 2 and each.errors[0]["message"] == "name one of a, b"


def test_a_batch_whose_requests_are_held_begins_without_knowing_its_model() -> None:
    each, models = batch(), ScriptedModels({})
    served = routed(models, is_held=True)
    assert served.accept(each, {"alias": 1, "x": 2}, 0.0) == "" and not each.errors
    assert each.models == {"alias": "", "x": ""} and served.problem(each) == "" and not served.resolve_rest(each)
    loaded = StoredBatch.from_json(each.to_json())
    models.names = {"alias": "a"}
    assert served.resolve_rest(loaded) and not served.resolve_rest(loaded)
    assert loaded.models == {"alias": "a", "x": ""}, "it is kept as soon as it is known"
    assert "made for the model 'x': the model 'x' is not served" in served.problem(loaded)
    models.names = {"alias": "b", "x": "x"}
    assert "made for the model 'a', this server has 'b'" in served.problem(loaded)


@pytest.mark.parametrize("is_held", [False, True])
def test_a_batch_that_has_begun_asks_for_a_replica_after_a_restart(is_held: bool) -> None:
    each, models = batch(), ScriptedModels({"alias": "a"})
    routed(models).accept(each, {"alias": 1}, 0.0)
    models.names = {}
    assert bool(routed(models, is_held=is_held).problem(each)) is not is_held


def test_no_name_is_resolved_while_requests_are_held() -> None:
    """A batch may have 1,000 names, and each is looked for again and again."""
    num_resolved = 0

    def resolve(name: str) -> str:
        nonlocal num_resolved
        num_resolved += 1
        raise ModelNotFound(name, "")

    served = BatchModels(resolve, has_models=lambda: False, is_held=lambda: True)
    each = batch()
    assert served.accept(each, {"a": 1, "b": 2}, 0.0) == "" and each.models == {"a": "", "b": ""}
    assert served.problem(each) == "" and not served.resolve_rest(each) and num_resolved == 0
