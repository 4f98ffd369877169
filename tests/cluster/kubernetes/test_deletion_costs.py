"""deletion_costs.py: pods that are gone are left out, and restoring after an error hides no error."""

import asyncio
import logging

import pytest

from chairlift.cluster.kubernetes.deletion_costs import DeletionCosts
from chairlift.cluster.kubernetes.pod_removal_order import LOW_COST
from chairlift.cluster.kubernetes.pods import PREVIOUS_COST
from chairlift.core.cluster_errors import ClusterDenied, ClusterFailed
from support_kubernetes_cluster import KubernetesScene, kubernetes_scene
from support_kubernetes_objects import COST


async def annotations(scene: KubernetesScene) -> list[dict[str, str]]:
    return [pod["metadata"].get("annotations") or {} for pod in scene.controllers.pods()]


def test_pods_that_are_gone_or_were_replaced_are_left_out() -> None:
    async def main() -> None:
        async with kubernetes_scene(3) as scene:
            cluster = scene.make_cluster()
            pods = (await cluster._reader.read()).pods
            await scene.fake.delete(pods[0].name, "default", "pods")
            scene.fake.objects["pods", "default", pods[1].name]["metadata"]["uid"] = "another"
            costs = DeletionCosts(cluster._api)
            await costs.lower(pods)
            assert await annotations(scene) == [{}, {COST: str(LOW_COST), PREVIOUS_COST: ""}]
            await costs.lower((await cluster._reader.read()).pods)  # twice keeps the first cost
            await costs.restore((await cluster._reader.read()).pods)
            assert await annotations(scene) == [{}, {}]
            await cluster.close()

    asyncio.run(main())


def test_restoring_after_an_error_does_not_replace_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with kubernetes_scene(1) as scene:
            cluster = scene.make_cluster()
            pods = (await cluster._reader.read()).pods
            costs = DeletionCosts(cluster._api)
            scene.fake.rules = []
            with pytest.raises(ClusterDenied, match="does not permit to patch pods"):
                await costs.lower(pods)
            with caplog.at_level(logging.WARNING):
                await costs.restore_after(ClusterFailed("the scale failed"), pods)
            assert f"the deletion cost of {pods[0].name} stays low until the next change" in caplog.text
            assert "the scale failed" in caplog.text
            await cluster.close()

    asyncio.run(main())
