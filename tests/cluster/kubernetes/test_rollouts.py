"""cluster.py during a rollout: counts are right, and no new pod is removed for an old one."""

import pytest
from aiohttp import web

from chairlift.core.cluster_errors import ClusterFailed
from support_kubernetes_cluster import SPEC, KubernetesScene, run_scenario
from support_kubernetes_controllers import HASH


def test_a_rollout_is_counted_right_and_never_scaled_down() -> None:
    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        before = await scene.ids(cluster)
        scene.controllers.starts_pods = False
        await scene.update_template()
        replicas = await scene.settled(cluster)
        deleted = list(scene.controllers.deleted)
        assert len(replicas) == 5 and len({each.version for each in replicas}) == 2  # one pod more than the number
        with pytest.raises(ClusterFailed, match=r"is being rolled out \(it has replicas of 2 versions: \w+, "):
            await cluster.scale(SPEC, 3, remove=before[:1])
        with pytest.raises(ClusterFailed, match="is being rolled out"):
            await cluster.stop(before[:1])
        assert await cluster.removable(before[:1]) == ()
        everything = [each.replica_id for each in replicas]
        await cluster.scale(SPEC, 4, remove=everything)  # the surplus of the rollout is not ours to remove
        assert await scene.settled(cluster) == replicas
        assert scene.replicas() == 4 and scene.costs() == {} and scene.controllers.deleted == deleted
        await cluster.start(SPEC, 1)
        assert scene.replicas() == 5
        scene.controllers.starts_pods = True
        after = await scene.settled(cluster)
        assert len(after) == 5 and len({each.version for each in after}) == 1
        assert not {each.replica_id for each in after} & set(before)
        await cluster.scale(SPEC, 4, remove=[after[0].replica_id])
        assert await scene.ids(cluster) == [each.replica_id for each in after[1:]]
        await cluster.close()

    run_scenario(scenario, replicas=4)


def test_a_deployment_that_is_scaled_down_in_a_rollout_would_lose_new_pods() -> None:
    """Why `scale` refuses it: the controller takes from both versions, in proportion."""

    async def scenario(scene: KubernetesScene) -> None:
        scene.controllers.starts_pods = False
        await scene.update_template()
        await scene.controllers.settle()
        new = {pod["metadata"]["name"] for pod in scene.controllers.pods(**{HASH: scene.newest_version()})}
        body = scene.workload()
        await scene.fake.put_object("deployments", {**body, "spec": {**body["spec"], "replicas": 2}})
        await scene.controllers.settle()
        assert new & set(scene.controllers.deleted)

    run_scenario(scenario, replicas=8)


def test_a_rollout_does_not_hinder_zero() -> None:
    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        scene.controllers.starts_pods = False
        await scene.update_template()
        await scene.controllers.settle()
        await cluster.scale(SPEC, 0)
        assert await scene.ids(cluster) == []
        await cluster.scale(SPEC, 1)
        assert len(await scene.ids(cluster)) == 1
        await cluster.close()

    run_scenario(scenario)


def test_before_a_reduction_the_controller_must_have_seen_the_last_change() -> None:
    """A rollout that has just begun shows in nothing else."""

    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        await scene.update_template()
        with pytest.raises(ClusterFailed, match="has not seen its last change for 2 s"):
            await cluster.scale(SPEC, 2)
        assert scene.sleeps == [0.1] * 20 and scene.replicas() == 3
        await cluster.scale(SPEC, 4)
        num_reads = 0

        def observe_later(request: web.Request) -> None:
            nonlocal num_reads
            num_reads += request.path.endswith("/llm")
            if num_reads == 4:
                metadata = scene.workload()["metadata"]
                scene.workload()["status"]["observedGeneration"] = metadata["generation"]

        scene.fake.fault = observe_later
        await cluster.scale(SPEC, 3)
        assert num_reads == 4 and scene.replicas() == 3
        await cluster.close()

    run_scenario(scenario)
