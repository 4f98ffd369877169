"""cluster.py over a LeaderWorkerSet: its replicas are the leaders, and the highest indexes go."""

import logging

import pytest

from chairlift.cluster.cluster_replica import PlacementState
from chairlift.core.cluster_errors import ClusterFailed
from support_kubernetes_cluster import SPEC, KubernetesScene, run_scenario


def test_leaders_are_listed_and_scaled() -> None:
    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        before = await scene.settled(cluster)
        assert len(scene.controllers.names()) == 6  # a leader and a worker each
        assert [each.replica_id.partition(".")[0] for each in before] == ["llm-0", "llm-1", "llm-2"]
        assert {each.state for each in before} == {PlacementState.RUNNING} and before[0].version
        await cluster.scale(SPEC, 4)
        assert len(await scene.ids(cluster)) == 4
        wanted, highest = before[0].replica_id, (await scene.ids(cluster))[3]
        assert await cluster.removable([wanted]) == [highest]
        await cluster.scale(SPEC, 3, remove=[highest])
        assert highest not in await scene.ids(cluster)
        await cluster.scale(SPEC, 4)
        again = await scene.ids(cluster)
        assert again[:3] == [each.replica_id for each in before]
        assert again[3].startswith("llm-3.") and again[3] != highest  # the name is the same, the pod is not
        await cluster.close()

    run_scenario(scenario, kind="leaderworkerset")


def test_another_group_than_the_highest_cannot_be_stopped(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        first, second, third = await scene.ids(cluster)
        with pytest.raises(
            ClusterFailed, match=rf"only remove its highest indexes: {third} would go instead of {first}"
        ):
            await cluster.stop([first])
        with caplog.at_level(logging.WARNING):
            await cluster.scale(SPEC, 2, remove=[first])
        assert "removes llm-2 instead of a replica that was drained" in caplog.text
        await cluster.stop([third])  # it is on its way already
        assert scene.replicas() == 2
        await cluster.stop([second, third, "llm-9.00000000"])
        assert await scene.ids(cluster) == [first] and scene.replicas() == 1
        assert ("patch", "", "pods") not in scene.fake.calls
        await cluster.close()

    run_scenario(scenario, kind="leaderworkerset")


def test_an_update_is_not_scaled_down() -> None:
    """It begins with the highest index, so that the newest would go first."""

    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        leader = scene.fake.objects["pods", "default", "llm-2"]
        leader["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/template-revision-hash"] = "newer"
        with pytest.raises(ClusterFailed, match=r"LeaderWorkerSet llm .* is being rolled out"):
            await cluster.scale(SPEC, 2)
        assert await cluster.removable([(await scene.ids(cluster))[0]]) == ()
        await cluster.close()

    run_scenario(scenario, kind="leaderworkerset")
