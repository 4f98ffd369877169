"""cluster.py: scaling a Deployment so that the drained pod goes, through conflicts and lost answers."""

import asyncio
import logging
from typing import Any

import pytest
from aiohttp import web

from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.cluster_replica import PlacementState
from chairlift.cluster.kubernetes.pod_removal_order import LOW_COST
from chairlift.core.cluster_errors import ClusterDenied, ClusterFailed
from support_kubernetes_cluster import SPEC, KubernetesScene, kubernetes_scene, run_scenario
from support_kubernetes_controllers import deployment
from support_kubernetes_objects import COST, status


def test_list_names_the_pods_of_the_deployment_alone() -> None:
    async def scenario(scene: KubernetesScene) -> None:
        other = await scene.fake.put_object("deployments", deployment("other", 2))
        cluster = scene.make_cluster()
        replicas = await scene.settled(cluster)
        other_names = [each for each in scene.controllers.names() if each.startswith("other")]
        assert len(other_names) == 2 and other["spec"]["replicas"] == 2
        assert [each.replica_id for each in replicas] == [n for n in scene.controllers.names() if n[:3] == "llm"]
        assert {each.state for each in replicas} == {PlacementState.RUNNING}
        assert [each.url for each in replicas] == [f"http://10.0.0.{number}:8000" for number in (1, 2, 3)]
        assert len({each.version for each in replicas}) == 1 and replicas[0].version
        assert {each.node for each in replicas} == {"node-1"}
        assert [replicas[0].age_seconds - each.age_seconds for each in replicas] == [0.0, 1.0, 2.0]
        await cluster.close()

    run_scenario(scenario)


def test_list_polls_the_api_servers_cache_and_lists_replica_sets_only_for_new_owners() -> None:
    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        for resources in (["deployments", "pods", "replicasets"], ["deployments", "pods"]):
            scene.fake.calls.clear()
            scene.fake.requests.clear()
            assert len(await cluster.list()) == 3
            assert [resource for _, _, resource in scene.fake.calls] == resources
            assert [each.get("resourceVersion") for each in scene.fake.requests] == ["0", "0", None][: len(resources)]
        await scene.update_template()
        assert len({each.version for each in await scene.settled(cluster)}) == 1
        await cluster.close()

    run_scenario(scenario)


def test_scaling_up_twice_starts_nothing_twice() -> None:
    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        before = await scene.ids(cluster)
        await cluster.scale(SPEC, 5)
        await cluster.scale(SPEC, 5)
        assert (await scene.ids(cluster))[:3] == before and len(scene.controllers.names()) == 5
        await cluster.start(SPEC, 2)
        assert len(await scene.ids(cluster)) == 7
        assert scene.controllers.deleted == []
        await cluster.close()

    run_scenario(scenario)


def test_a_start_whose_answer_is_lost_starts_nothing_twice() -> None:
    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        methods: list[str] = []

        def lose_first(request: web.Request) -> str | None:
            methods.append(request.method)
            return "lose" if request.method == "PUT" and methods.count("PUT") == 1 else None

        scene.fake.fault = lose_first
        await cluster.start(SPEC, 1)
        assert scene.replicas() == 4
        await cluster.close()

    run_scenario(scenario)


@pytest.mark.parametrize("chosen", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_the_pods_of_remove_go(chosen: tuple[int, ...]) -> None:
    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        before = await scene.ids(cluster)
        remove = [before[number] for number in chosen]
        await cluster.scale(SPEC, 3 - len(chosen), remove=remove)
        assert await scene.ids(cluster) == [each for each in before if each not in remove]
        assert scene.costs() == {}
        await cluster.close()

    run_scenario(scenario)


def test_without_remove_the_youngest_goes_and_unknown_names_are_ignored() -> None:
    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        before = await scene.ids(cluster)
        await cluster.scale(SPEC, 2)
        assert await scene.ids(cluster) == before[:2]
        await cluster.scale(SPEC, 1, remove=["llm-gone"])
        assert await scene.ids(cluster) == before[:1]
        await cluster.close()

    run_scenario(scenario)


def test_a_pod_that_waits_goes_before_a_drained_one_and_removable_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        ready = await scene.ids(cluster)
        scene.controllers.starts_pods = False
        await cluster.scale(SPEC, 4)
        (pending,) = set(await scene.ids(cluster)) - set(ready)
        assert await cluster.removable([ready[0]]) == [pending]
        assert await cluster.removable([ready[1], ready[0]]) == [pending, ready[1]]
        assert await cluster.removable(["llm-gone"]) == []
        with caplog.at_level(logging.WARNING):
            await cluster.scale(SPEC, 3, remove=[ready[0]])
        assert f"removes {pending} instead of a replica that was drained" in caplog.text
        assert await scene.ids(cluster) == ready and scene.costs() == {}
        await cluster.close()

    run_scenario(scenario)


def test_a_cost_that_the_user_has_set_is_given_back() -> None:
    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        first, second, _ = await scene.ids(cluster)
        body = scene.fake.objects["pods", "default", first]
        annotated = {**body, "metadata": {**body["metadata"], "annotations": {COST: "7", "team": "a"}}}
        await scene.fake.put_object("pods", annotated)
        scene.controllers.is_running = False
        await cluster.scale(SPEC, 2, remove=[first])
        assert scene.costs()[first] == str(LOW_COST)
        await cluster.scale(SPEC, 2, remove=[second])  # another decision, before a pod is gone
        assert scene.costs() == {first: "7", second: str(LOW_COST)}
        pod = scene.fake.objects["pods", "default", first]
        assert pod["metadata"]["annotations"] == {COST: "7", "team": "a"}
        await cluster.scale(SPEC, 3)
        assert scene.costs() == {first: "7"}
        scene.controllers.is_running = True
        assert len(await scene.ids(cluster)) == 3 and scene.controllers.deleted == []
        await cluster.close()

    run_scenario(scenario)


def test_a_decision_that_is_repeated_without_names_keeps_the_costs() -> None:
    """The next tick sees the drained replica gone from its count, and names nothing to remove."""

    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        first = (await scene.ids(cluster))[0]
        scene.controllers.is_running = False
        await cluster.scale(SPEC, 2, remove=[first])
        await cluster.scale(SPEC, 2)
        scene.controllers.is_running = True
        assert first not in await scene.ids(cluster) and scene.controllers.deleted == [first]
        await cluster.close()

    run_scenario(scenario)


def deny_scale(request: web.Request) -> Any:
    return status(403, "no") if request.method == "PUT" else None


def answer_429(request: web.Request) -> Any:
    return status(429, "later") if request.method == "PUT" else None


@pytest.mark.parametrize(("fault", "error"), [(deny_scale, ClusterDenied), (answer_429, ClusterFailed)])
def test_costs_are_taken_back_when_the_number_cannot_be_set(fault: Any, error: type[Exception]) -> None:
    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        before = await scene.ids(cluster)
        scene.fake.fault = fault
        with pytest.raises(error):
            await cluster.scale(SPEC, 2, remove=before[:1])
        assert scene.costs() == {} and scene.replicas() == 3
        assert ("patch", "", "pods") in scene.fake.calls
        await cluster.close()

    run_scenario(scenario)


@pytest.mark.full
@pytest.mark.parametrize(("fault", "acts_between"), [("cut", False), ("lose", False), ("lose", True)])
def test_after_a_fault_at_any_request_another_process_completes_the_call(fault: str, acts_between: bool) -> None:
    """The connection breaks at the n-th request, before or after its effect, and the process ends there."""

    async def scenario(scene: KubernetesScene, number: int) -> bool:
        cluster, num_requests = scene.make_cluster(), 0
        before = await scene.ids(cluster)

        def break_connection(request: web.Request) -> str | None:
            nonlocal num_requests
            num_requests += 1
            return (fault if num_requests == number else "cut") if num_requests >= number else None

        scene.fake.fault = break_connection
        try:
            await cluster.scale(SPEC, 2, remove=before[:1])
        except ClusterFailed:
            is_complete = False
        else:
            is_complete = num_requests < number
        scene.fake.fault = None
        await cluster.close()
        if acts_between:
            await scene.controllers.settle()
        second = scene.make_cluster()
        await second.scale(SPEC, 2, remove=before[:1])
        assert await scene.ids(second) == before[1:]
        assert scene.costs() == {} and scene.controllers.deleted == before[:1]
        await second.close()
        return is_complete

    async def main() -> int:
        for number in range(1, 30):
            async with kubernetes_scene(3) as scene:
                if await scenario(scene, number):
                    return number
        raise AssertionError("no run was complete")

    assert asyncio.run(main()) == 8  # workload, pods, replica sets, autoscalers, patch, get and put of the scale


def test_an_answer_that_is_lost_does_not_scale_twice() -> None:
    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        before, methods = await scene.ids(cluster), []

        def lose_first_put(request: web.Request) -> str | None:
            methods.append(request.method)
            return "lose" if methods.count("PUT") == 1 and request.method == "PUT" else None

        scene.fake.fault = lose_first_put
        await cluster.scale(SPEC, 2, remove=before[:1])
        assert methods.count("PUT") == 2  # the second gets 409, and the next read shows the target
        assert await scene.ids(cluster) == before[1:]
        await cluster.close()

    run_scenario(scenario)


def test_costs_stay_while_it_is_unknown_whether_the_number_was_set() -> None:
    """It was: with the costs taken back, a pod that serves would go instead of the drained one."""

    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        before = await scene.ids(cluster)
        scene.fake.fault = lambda request: "lose" if request.method == "PUT" else None
        with pytest.raises(ClusterFailed, match="update of deployments/scale llm: 4 attempts failed") as error:
            await cluster.scale(SPEC, 2, remove=before[:1])
        assert "status" not in error.value.details
        assert await scene.ids(cluster) == before[1:]
        await cluster.close()

    run_scenario(scenario)


def test_stop_counts_a_pod_once_until_it_is_gone() -> None:
    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        first, second, third = await scene.ids(cluster)
        scene.controllers.is_running = False
        await cluster.stop([first, "llm-gone"])
        scene.controllers.is_running = True
        scene.fake.objects["deployments", "default", "llm"]["status"]["observedGeneration"] = 99
        for _ in range(2):
            await cluster.stop([first])
        assert scene.replicas() == 2
        scene.controllers.removes_pods = False
        await scene.controllers.settle()
        assert [each.state for each in await cluster.list()] == [PlacementState.STOPPING, *[PlacementState.RUNNING] * 2]
        await cluster.stop([first])
        await cluster.stop([third])
        assert await scene.ids(cluster) == [second] and scene.replicas() == 1
        await cluster.close()

    run_scenario(scenario)


def test_a_conflict_is_read_again_and_the_last_word_counts() -> None:
    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        before, num_conflicts = await scene.ids(cluster), 0

        def another_writer(request: web.Request) -> None:
            nonlocal num_conflicts
            if request.method == "PUT" and num_conflicts < 3:
                num_conflicts += 1
                scene.fake.version += 1
                scene.workload()["metadata"]["resourceVersion"] = str(scene.fake.version)

        scene.fake.fault = another_writer
        await cluster.scale(SPEC, 2, remove=before[1:2])
        assert num_conflicts == 3 and await scene.ids(cluster) == [before[0], before[2]]
        num_conflicts = -100
        with pytest.raises(ClusterFailed, match="changed 6 times while it was set"):
            await cluster.scale(SPEC, 1, remove=before[:1])
        assert scene.costs() == {} and scene.replicas() == 2
        await cluster.close()

    run_scenario(scenario)


def test_a_number_that_someone_else_sets_between_the_reads_is_a_conflict() -> None:
    async def scenario(scene: KubernetesScene) -> None:
        cluster, is_set = scene.make_cluster(), False

        def another_writer(request: web.Request) -> None:
            nonlocal is_set
            if request.path.endswith("/scale") and not is_set:
                is_set = True
                scene.workload()["spec"]["replicas"] = 5

        scene.fake.fault = another_writer
        await cluster.start(SPEC, 1)
        assert scene.replicas() == 6
        await cluster.close()

    run_scenario(scenario)


def test_options_of_replicas_have_no_effect_which_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        with caplog.at_level(logging.WARNING):
            await cluster.scale(SPEC, 4)
            assert caplog.text == ""
            await cluster.scale(ReplicaSpec(model="m"), 4)
            await cluster.start(ReplicaSpec(arguments=("--dtype", "float32")))
        assert caplog.text.count("have no effect: the pod template of the Deployment llm in namespace default has") == 1
        assert scene.replicas() == 5
        await cluster.close()

    run_scenario(scenario)


def test_a_name_that_does_not_exist_and_a_workload_that_is_malformed() -> None:
    async def scenario(scene: KubernetesScene) -> None:
        cluster = scene.make_cluster()
        scene.workload()["spec"]["selector"] = {"matchExpressions": [{"key": "a", "operator": "Odd"}]}
        with pytest.raises(ClusterFailed, match=r"the Deployment llm in namespace default is malformed: KeyError"):
            await cluster.list()
        await scene.fake.delete("llm", "default", "deployments")
        with pytest.raises(ClusterFailed, match="has no deployments llm in namespace default"):
            await cluster.list()
        await cluster.close()

    run_scenario(scenario)
