"""Random scaling of a Deployment with faults, restarts of the process, rollouts and a controller that is late.

At rest there are as many pods as asked for, only the drained ones were removed, and no cost of ours is left.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable

import pytest
from aiohttp import web

from chairlift.core.cluster_errors import ClusterFailed
from support_kubernetes_cluster import SPEC, KubernetesScene, kubernetes_scene

NUM_CHANGES = 10
SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(6, 60))]


def fault_of(rng: random.Random, share: float) -> Callable[[web.Request], str | None]:
    return lambda _: rng.choice(["cut", "lose"]) if rng.random() < share else None


async def scale(scene: KubernetesScene, rng: random.Random, target: int, remove: list[str]) -> None:
    """Scale, perhaps several times by processes that fail, until one succeeds; the controller acts now and then."""
    share = rng.choice([0.0, 0.2, 0.6])
    for attempt in range(20):
        scene.fake.fault = fault_of(rng, share if attempt < 5 else 0.0)
        cluster = scene.make_cluster(rng=rng)
        try:
            await cluster.scale(SPEC, target, remove=remove)
        except ClusterFailed:
            pass
        else:
            if rng.random() < 0.5:
                with contextlib.suppress(ClusterFailed):
                    await cluster.scale(SPEC, target, remove=rng.choice([remove, []]))
            return
        finally:
            scene.fake.fault = None
            await cluster.close()
            if attempt >= 5 or rng.random() < 0.3:
                await scene.controllers.settle()
    raise AssertionError("the change never succeeds")


@pytest.mark.share(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_only_drained_pods_go_whatever_fails(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        async with kubernetes_scene(4) as scene:
            for _ in range(NUM_CHANGES):
                names, deleted = scene.controllers.names(), len(scene.controllers.deleted)
                target = rng.randrange(7)
                remove = rng.sample(names, max(0, len(names) - target))
                if rng.random() < 0.3 and remove:  # a decision that is given up half way
                    scene.fake.fault = fault_of(rng, 0.5)
                    cluster = scene.make_cluster(rng=rng)
                    other = rng.sample(names, len(remove))
                    is_scaled = True
                    try:
                        await cluster.scale(SPEC, target, remove=other)
                    except ClusterFailed:
                        is_scaled = scene.replicas() == target  # the answer was lost
                    remove = other if is_scaled else remove
                    scene.fake.fault = None
                    await cluster.close()
                await scale(scene, rng, target, remove)
                await scene.controllers.settle()
                assert set(scene.controllers.deleted[deleted:]) == set(remove)
                assert len(scene.controllers.names()) == target == scene.replicas()
                assert scene.costs() == {}

    asyncio.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rollout_loses_no_new_pod_whatever_is_asked_for(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        async with kubernetes_scene(5) as scene:
            old = set(scene.controllers.names())
            await scene.update_template()
            new = f"llm-{scene.newest_version()}-"
            for _ in range(5):
                scene.controllers.starts_pods = False
                for name in scene.controllers.names():
                    if name not in old and rng.random() < 0.4:
                        await scene.controllers.run_pod(name)
                if rng.random() < 0.7:
                    await scene.controllers.settle()
                cluster = scene.make_cluster(rng=rng)
                names = scene.controllers.names()
                try:
                    await cluster.scale(SPEC, rng.randrange(1, 9), remove=rng.sample(names, 2))
                except ClusterFailed:
                    assert scene.replicas() >= 5
                await cluster.close()
            scene.controllers.starts_pods = True
            if not all(name.startswith(new) for name in scene.controllers.names()):
                assert not any(name.startswith(new) for name in scene.controllers.deleted)
            await scene.controllers.settle()
            assert not old & set(scene.controllers.names())
            assert len(scene.controllers.names()) == scene.replicas()

    asyncio.run(main())
