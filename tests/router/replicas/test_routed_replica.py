"""RoutedReplica: counts, load reports, models and restarts, and the candidate that policies see."""

import pytest

from chairlift.router.endpoint import Endpoint, ReplicaKind
from chairlift.router.health.replica_load import ReplicaLoad, parse_load
from chairlift.router.health.served_models import ServedModels
from chairlift.router.replicas.routed_replica import MAX_REPORT_AGE_SECONDS, RoutedReplica
from support_replica_set import NO_PROBES, url

REPORT = {
    "state": "ready", "instance_id": "p1", "running_requests": 7, "waiting_tokens": 300, "expected_wait_seconds": 0.5,
    "prefill_tokens_per_second": 900, "adapters": ["sql"], "fingerprint": "f1",
}  # fmt: skip


def replica(**fields: object) -> RoutedReplica:
    endpoint = Endpoint(url=url("a"), **fields)  # type: ignore[arg-type]
    return RoutedReplica(endpoint, NO_PROBES, 0.0, is_warm=True)


def served(*names: str, **fingerprints: str) -> ServedModels:
    return ServedModels(names=names, adapters=frozenset({"lora"}), fingerprints=fingerprints)


def test_a_candidate_has_the_last_report_and_the_own_counts() -> None:
    a = replica(weight=2.0)
    a.open(prompt_tokens=100)
    a.set_load(parse_load(REPORT, 0.0))
    a.set_models(served("m"))
    candidate = a.candidate(1.0)
    assert (candidate.replica_id, candidate.weight, candidate.open_requests) == (url("a"), 2.0, 1)
    assert (candidate.waiting_tokens, candidate.running_requests) == (300, 7)
    assert (candidate.expected_wait_seconds, candidate.prefill_tokens_per_second) == (0.5, 900.0)
    assert candidate.adapters == {"sql", "lora"}


def test_the_prompt_tokens_that_this_router_has_sent_count_at_once() -> None:
    a = replica()
    a.set_load(parse_load(REPORT, 0.0))
    a.open(prompt_tokens=200)
    a.open(prompt_tokens=200)
    assert (a.candidate(0.0).waiting_tokens, a.candidate(0.0).pending_prefill_tokens) == (300, 400)
    a.end_wait(200)
    assert (a.candidate(0.0).waiting_tokens, a.candidate(0.0).pending_prefill_tokens) == (300, 200)
    a.release()
    assert a.candidate(0.0).open_requests == 1


def test_a_report_is_too_old_after_15_seconds_and_the_replica_stays() -> None:
    a = replica()
    a.set_load(parse_load(REPORT, 0.0))
    a.open(prompt_tokens=5)
    assert a.candidate(MAX_REPORT_AGE_SECONDS - 1).running_requests == 7
    late = a.candidate(MAX_REPORT_AGE_SECONDS + 1)
    assert (late.running_requests, late.expected_wait_seconds, late.pending_prefill_tokens) == (0, 0.0, 5)
    assert a.status(20.0).state == "healthy" and a.status(20.0).load_age_seconds == 20.0
    a.set_load(parse_load(REPORT, 30.0))
    assert a.candidate(30.0).running_requests == 7


def test_a_candidate_is_made_once_and_made_anew_after_every_change() -> None:
    a = replica()
    changes = [
        lambda: a.open(1), lambda: a.end_wait(1), a.release, lambda: a.set_load(ReplicaLoad(at_seconds=0.0)),
        lambda: a.set_models(served("m")), lambda: a.set_weight(3.0), lambda: a.restart("p2"),
        lambda: a.set_endpoint(Endpoint(url=url("a"), weight=9.0)),
    ]  # fmt: skip
    for change in changes:
        before = a.candidate(0.0)
        assert a.candidate(0.0) is before
        change()
        assert a.candidate(0.0) is not before
    assert a.candidate(0.0).incarnation == "p2"


def test_a_partial_report_completes_the_last_one_of_the_process() -> None:
    a = replica()
    a.set_load(parse_load(REPORT, 0.0))
    a.set_load(parse_load({"running_requests": 1}, 1.0))
    assert a.candidate(1.0).running_requests == 1 and a.candidate(1.0).waiting_tokens == 300
    assert a.fingerprint("m") == "f1"
    a.set_load(parse_load({"instance_id": "p2", "running_requests": 1}, 2.0))
    assert a.candidate(2.0).waiting_tokens == 0 and a.fingerprint("m") == ""


def test_a_restart_forgets_the_load_and_keeps_what_is_open() -> None:
    a = replica()
    a.open(prompt_tokens=10)
    a.restart("p1")
    assert a.num_restarts == 0, "the first id is no restart"
    a.set_load(parse_load(REPORT, 0.0))
    a.restart("p2")
    assert (a.num_restarts, a.open_requests, a.status(0.0).load) == (1, 1, None)
    a.restart("")
    assert a.num_restarts == 2


@pytest.mark.parametrize(
    ("kind", "fingerprint", "resumable"),
    [
        (ReplicaKind.CHAIRLIFT, "f1", True),
        (ReplicaKind.CHAIRLIFT, "", False),
        (ReplicaKind.OPENAI, "f1", False),
        (ReplicaKind.AUTO, "f1", False),
    ],
)
def test_streams_of_chairlift_replicas_with_known_weights_are_resumable(
    kind: ReplicaKind, fingerprint: str, resumable: bool
) -> None:
    a = replica(models=("m",), kind=kind)
    a.set_models(served("m", **({"m": fingerprint} if fingerprint else {})))
    assert a.is_resumable("m") is resumable and not a.is_resumable("other")
    assert a.status(0.0).resumable is resumable and a.status(0.0).kind is kind


def test_a_fingerprint_is_that_of_the_model_or_of_all() -> None:
    a = replica()
    assert a.fingerprint("m") == ""
    a.set_load(ReplicaLoad(at_seconds=0.0, fingerprints={"": "all", "n": "n1"}))
    assert (a.fingerprint("m"), a.fingerprint("n")) == ("all", "n1")
    a.set_models(served("m", m="m1"))
    assert (a.fingerprint("m"), a.fingerprint("n")) == ("m1", "n1")


def test_models_of_the_source_count_before_those_of_the_replica() -> None:
    a = replica()
    assert a.models == () and a.set_models(served("m")) and a.models == ("m",)
    assert not a.set_models(served("m"))
    a.set_endpoint(Endpoint(url=url("a"), models=("x",)))
    assert a.models == ("x",) and not a.set_models(served("y")) and a.models == ("x",)


def test_a_kind_is_learnt_anew_only_when_the_source_changes_it() -> None:
    a = replica()
    a.kind = ReplicaKind.CHAIRLIFT
    a.set_endpoint(Endpoint(url=url("a"), weight=2.0))
    assert a.kind is ReplicaKind.CHAIRLIFT
    a.set_endpoint(Endpoint(url=url("a"), kind=ReplicaKind.OPENAI))
    assert a.kind is ReplicaKind.OPENAI


def test_more_releases_than_picks_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="has -1 open requests"):
        replica().release()
