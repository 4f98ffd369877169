"""hpa_conflict.py: another autoscaler of the same workload is an error, and one of another workload is none."""

import asyncio
import logging
from typing import Any

import pytest

from chairlift.cluster.kubernetes.hpa_conflict import CHECK_SECONDS
from chairlift.core.clock import FakeClock
from chairlift.core.cluster_errors import ClusterFailed
from support_kubernetes_cluster import ROLES, SPEC, kubernetes_scene, role_rules

HPA = "horizontalpodautoscalers"


def autoscaler(name: str, kind: str, target: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"scaleTargetRef": {"kind": kind, "name": target}}}


def test_two_autoscalers_of_one_deployment_are_refused() -> None:
    async def main() -> None:
        async with kubernetes_scene(2) as scene:
            clock = FakeClock()
            cluster = scene.make_cluster(clock=clock)
            await scene.fake.put_object(HPA, autoscaler("other", "Deployment", "other"))
            await scene.fake.put_object(HPA, autoscaler("set", "LeaderWorkerSet", "llm"))
            for number, spec in enumerate(({}, None, [], {"scaleTargetRef": 7})):
                await scene.fake.put_object(HPA, {"metadata": {"name": f"odd-{number}"}, "spec": spec})
            for target in (3, 3, 4):
                await cluster.scale(SPEC, target)
            assert scene.fake.calls.count(("list", "autoscaling", HPA)) == 1  # believed for a while
            await scene.fake.put_object(HPA, autoscaler("keda-llm", "Deployment", "llm"))
            clock.advance(CHECK_SECONDS)
            for _ in range(2):  # a refusal is not believed for a while
                with pytest.raises(ClusterFailed, match="HorizontalPodAutoscaler keda-llm scales the Deployment llm"):
                    await cluster.scale(SPEC, 5)
            await cluster.scale(SPEC, 4)  # nothing to change, nothing to refuse
            assert scene.replicas() == 4
            await scene.fake.delete("keda-llm", "default", HPA)
            await cluster.scale(SPEC, 5)
            assert scene.replicas() == 5
            await cluster.close()

    asyncio.run(main())


def test_where_it_may_not_look_it_warns_and_scales(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        rules = [each for each in role_rules(ROLES["deployment"]) if HPA not in each["resources"]]
        async with kubernetes_scene(2, rules=rules) as scene:
            cluster = scene.make_cluster()
            with caplog.at_level(logging.WARNING):
                await cluster.scale(SPEC, 3)
                await cluster.scale(SPEC, 4)
            assert caplog.text.count("cannot see whether another autoscaler scales the Deployment llm") == 1
            assert 'resources: ["horizontalpodautoscalers"], verbs: ["list"]' in caplog.text
            assert scene.replicas() == 4
            await cluster.close()

    asyncio.run(main())
