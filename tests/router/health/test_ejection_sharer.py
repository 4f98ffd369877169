"""EjectionSharer: an ejection and its end reach the other router's replicas, and no further."""

from chairlift.router.health.breaker import HealthOutcome
from chairlift.router.health.ejection_sharer import EjectionSharer
from chairlift.router.replica_set import ReplicaSet
from support_replica_set import endpoints, new_set, pick, states, url


class Broadcast:
    """Passes calls to the other router's set, and keeps them."""

    def __init__(self, other: ReplicaSet) -> None:
        self.calls: list[tuple[object, ...]] = []
        self._other = other

    def eject(self, replica_id: str, seconds: float, reason: str) -> None:
        self.calls.append(("eject", replica_id[7], seconds, reason))
        self._other.eject_by_other_router(replica_id, seconds, reason, 0.0)

    def restore(self, replica_id: str) -> None:
        self.calls.append(("restore", replica_id[7]))
        self._other.return_by_other_router(replica_id, 31.0)


def eject(replica_set: ReplicaSet, name: str) -> None:
    for _ in range(3):
        with pick(replica_set, only=name) as reservation:
            reservation.record(HealthOutcome.FAULT, 0.0)


def test_an_ejection_and_its_end_reach_the_other_router_and_no_further() -> None:
    (first, _), (second, _) = new_set("abc"), new_set("abc")
    there, back = Broadcast(second), Broadcast(first)
    first.listeners.append(EjectionSharer(there))
    second.listeners.append(EjectionSharer(back))
    eject(first, "a")
    assert there.calls == [("eject", "a", 30.0, "3 requests in a row failed, the limit is 3")]
    assert states(second)["a"] == "ejected"
    with pick(first, 30.0) as trial:
        assert trial.is_trial
        trial.record(HealthOutcome.SUCCESS, 31.0)
    assert there.calls[1:] == [("restore", "a")] and states(second, 31.0)["a"] == "healthy"
    assert back.calls == []


def test_an_own_ejection_is_not_ended_by_another_router() -> None:
    replica_set, _ = new_set("abc")
    eject(replica_set, "a")
    assert not replica_set.return_by_other_router(url("a"), 1.0)
    assert not replica_set.return_by_other_router(url("b"), 1.0) and not replica_set.return_by_other_router("x", 1.0)
    assert states(replica_set)["a"] == "ejected"


def test_a_trial_of_an_ejection_by_another_router_makes_a_further_one_our_own() -> None:
    replica_set, _ = new_set("abc")
    broadcast = Broadcast(new_set("abc")[0])
    replica_set.listeners.append(EjectionSharer(broadcast))
    replica_set.eject_by_other_router(url("a"), 10.0, "test", 0.0)
    with pick(replica_set, 10.0) as trial:
        trial.record(HealthOutcome.FAULT, 10.0)
    assert broadcast.calls == [("eject", "a", 60.0, "the trial request failed")]
    assert not replica_set.return_by_other_router(url("a"), 11.0)


def test_a_removed_replica_is_forgotten() -> None:
    replica_set, _ = new_set("abc")
    broadcast = Broadcast(new_set("abc")[0])
    replica_set.listeners.append(EjectionSharer(broadcast))
    eject(replica_set, "a")
    replica_set.update(endpoints("bc"), 1.0)
    replica_set.update(endpoints("abc"), 2.0)
    assert [call[0] for call in broadcast.calls] == ["eject"]
