"""take_fleet over a fake ray: one controller has a name, its next driver process takes it over, others are refused.

tests/cluster/ray/test_ray_calls.py has the same on a real Ray.
"""

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

MODULE = "chairlift.cluster.ray.fleet_owner"


class RayError(Exception):
    """As in Ray."""


class RayActorError(RayError):
    """As in Ray."""


class ActorUnavailableError(RayActorError):
    """As in Ray."""


class FakeRay:
    """The names of actors and the time; `actors` are the owners that run, `error` is what they answer with."""

    def __init__(self) -> None:
        self.actors: dict[str, Any] = {}
        self.error: Exception | None = None
        self.now, self.ends_at = 0.0, float("inf")

    def make(self, name: str, owner: Any) -> Any:
        if name in self.actors:
            raise ValueError("the name is taken")
        call = SimpleNamespace(remote=owner.owner)
        self.actors[name] = SimpleNamespace(owner=call, name=name, _actor_id=object())
        return self.actors[name]

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.ends_at:
            self.actors.clear()

    def get(self, answer: Any, timeout: float) -> Any:
        assert timeout > 0
        if self.error is not None:
            raise self.error
        return answer

    def get_actor(self, name: str, namespace: str) -> Any:
        assert namespace == "n"
        if name not in self.actors:
            raise ValueError("there is none")
        return self.actors[name]

    def remote(self, kind: Any) -> Any:
        def options(*, name: str, namespace: str, num_cpus: int, scheduling_strategy: tuple[str, bool]) -> Any:
            assert (namespace, num_cpus) == ("n", 0)
            assert scheduling_strategy == ("driver's node", False)  # the death of another node does not end the owner
            return SimpleNamespace(remote=lambda *arguments: self.make(name, kind(*arguments)))

        return SimpleNamespace(options=options)

    def kill(self, actor: Any, no_restart: bool) -> None:
        assert no_restart
        del self.actors[actor.name]


@pytest.fixture
def ray() -> FakeRay:
    return FakeRay()


@pytest.fixture
def owner_module(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    stub: Any = ModuleType("ray")
    stub.exceptions = SimpleNamespace(
        RayError=RayError, RayActorError=RayActorError, ActorUnavailableError=ActorUnavailableError
    )
    for name in ("get", "get_actor", "remote", "kill"):
        setattr(stub, name, getattr(ray, name))
    stub.get_runtime_context = lambda: SimpleNamespace(get_node_id=lambda: "driver's node")
    strategies: Any = ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = lambda node_id, soft: (node_id, soft)
    monkeypatch.setitem(sys.modules, "ray", stub)
    monkeypatch.setitem(sys.modules, "ray.util", ModuleType("ray.util"))
    monkeypatch.setitem(sys.modules, strategies.__name__, strategies)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    module = importlib.import_module(MODULE)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: ray.now, sleep=ray.sleep))
    yield module
    sys.modules.pop(MODULE, None)


def test_another_controller_is_refused_by_name_and_another_fleet_is_not(ray: FakeRay, owner_module: Any) -> None:
    owner_module.take_fleet("f", "n", "token1", "process 1 of a")
    with pytest.raises(RuntimeError, match=r"another controller, process 1 of a, has the fleet 'f'.*--fleet-name"):
        owner_module.take_fleet("f", "n", "token2", "process 2 of b")
    assert owner_module.TAKE_SECONDS <= ray.now < owner_module.TAKE_SECONDS + 1
    owner_module.take_fleet("g", "n", "token2", "process 2 of b")
    assert len(ray.actors) == 2


def test_a_controller_gets_the_name_when_the_crashed_one_is_gone(ray: FakeRay, owner_module: Any) -> None:
    owner_module.take_fleet("f", "n", "token1", "process 1 of a")
    ray.ends_at = 5.0
    handle = owner_module.take_fleet("f", "n", "token2", "process 2 of b")
    assert handle.owner.remote() == ("token2", "process 2 of b") and 5.0 <= ray.now < 6.0


def test_the_next_driver_process_of_a_controller_takes_over_at_once(ray: FakeRay, owner_module: Any) -> None:
    owner_module.take_fleet("f", "n", "token1", "process 1 of a")
    owner_module.take_fleet("f", "n", "token1", "process 1 of a")
    assert ray.now <= owner_module.RETRY_SECONDS


def test_an_owner_that_does_not_answer_keeps_the_name(ray: FakeRay, owner_module: Any) -> None:
    handle = owner_module.take_fleet("f", "n", "token1", "process 1 of a")
    ray.error = RayError("late")
    with pytest.raises(RuntimeError, match="another controller, which does not answer, has the fleet"):
        owner_module.take_fleet("f", "n", "token2", "process 2 of b")
    assert not owner_module.has_ended(handle)


def test_an_own_owner_that_has_ended_is_replaced_though_ray_keeps_its_name(ray: FakeRay, owner_module: Any) -> None:
    ended = owner_module.take_fleet("f", "n", "token1", "process 1 of a")
    ray.error = RayActorError("its node is dead")
    handle = owner_module.take_fleet("f", "n", "token1", "process 1 of a", ended)
    assert handle is not ended and ray.now <= owner_module.RETRY_SECONDS


@pytest.mark.parametrize(
    ("error", "expected"), [(None, False), (RayActorError("dead"), True), (ActorUnavailableError("late"), False)]
)
def test_only_a_dead_owner_has_ended(ray: FakeRay, owner_module: Any, error: Exception | None, expected: bool) -> None:
    handle = owner_module.take_fleet("f", "n", "token1", "process 1 of a")
    ray.error = error
    assert owner_module.has_ended(handle) is expected
