"""RouterAdminRoutes: models, load, metrics, and what an administrator does with replicas."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from chairlift.cli.server_load_reader import row_of_replica
from chairlift.protocol.response_schemas import ROUTED_MODELS
from chairlift.router.discovery.base import SourceState, SourceStatus
from chairlift.router.health.served_models import parse_models
from chairlift.router.model_aliases_and_canaries import ModelRoutes
from chairlift.web.auth.api_keys import read_keys
from support_replica_set import probed
from support_router import CHAT, HELLO
from support_router_app import RoutedFleet, complete, routed
from support_server import run

KEYS = read_keys(None, {"CHAIRLIFT_API_KEY": "k", "CHAIRLIFT_ADMIN_KEY": "a"})
ADMIN = {"authorization": "Bearer a"}
USER = {"authorization": "Bearer k"}


async def manage(fleet: RoutedFleet, verb: str, body: Any) -> tuple[int, Any]:
    """Return status and body of an administrator's request."""
    response = await fleet.http.post(f"/admin/replicas/{verb}", json=body, headers=ADMIN)
    return response.status_code, response.json()


def test_models_are_those_of_the_pools_with_aliases_and_canaries() -> None:
    async def scenario() -> None:
        routes = ModelRoutes.parse(["alias=m", "canary=m:9,n:1", "dead=gone"])
        async with routed(complete, models=("m", "n"), routes=routes) as fleet:
            models = (await fleet.http.get("/v1/models")).json()
            assert models["object"] == "list"
            assert [model["id"] for model in models["data"]] == ["alias", "canary", "m", "n"]
            for model in models["data"]:
                assert (await fleet.http.get(f"/v1/models/{model['id']}")).json() == model
            missing = await fleet.http.get("/v1/models/dead")
            assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"

    run(scenario())


def test_a_model_has_the_smallest_length_of_its_replicas() -> None:
    async def scenario() -> None:
        routes = ModelRoutes.parse(["alias=m", "canary=m:9,n:1"])
        async with routed(complete, complete, models=("m", "n", "unknown"), routes=routes) as fleet:
            replicas = fleet.running.router.replicas
            for replica, lengths in zip(fleet.replicas, ({"m": 4096, "n": 1000}, {"m": 2048}), strict=True):
                served = parse_models({"data": [{"id": name, "max_model_len": n} for name, n in lengths.items()]})
                replicas.apply_probe(replica.url, probed(models=served), 0.0)
            models = (await fleet.http.get("/v1/models")).json()
            assert {model["id"]: model.get("max_model_len") for model in models["data"]} == {
                "alias": 2048, "canary": 1000, "m": 2048, "n": 1000, "unknown": None,
            }  # fmt: skip
            alias = (await fleet.http.get("/v1/models/alias")).json()
            assert [alias[name] for name in ("max_model_len", "max_input_tokens", "max_tokens")] == [2048, 2047, 2047]
            Draft202012Validator(ROUTED_MODELS).validate(models)

    run(scenario())


def test_a_model_whose_name_has_slashes_is_found() -> None:
    async def scenario() -> None:
        async with routed(complete, models=("org/name",)) as fleet:
            assert (await fleet.http.get("/v1/models/org/name")).json()["id"] == "org/name"

    run(scenario())


def test_load_counts_requests_and_replicas() -> None:
    async def scenario() -> None:
        async with routed(complete, complete) as fleet:
            load = (await fleet.http.get("/load")).json()
            assert load["state"] == "ready" and load["models"] == ["m"] and load["open_requests"] == 0
            assert load["replicas"]["healthy"] == 2

    run(scenario())


def test_metrics_have_requests_attempts_sources_and_shared_state() -> None:
    async def scenario() -> None:
        async with routed(complete) as fleet:
            router = fleet.running.router
            status = SourceStatus(
                name="file:a.yaml", state=SourceState.DOWN, since=0.0, num_endpoints=3, num_updates=1, num_failures=2,
                last_error="x",
            )  # fmt: skip
            router.source_statuses = lambda: (status,)
            await fleet.post(HELLO)
            for _ in range(2):  # counters do not grow by themselves
                router.update_gauges()
            page = (await fleet.http.get("/metrics")).text
            for line in (
                'chairlift_router_attempts_total{outcome="success"} 1.0', "chairlift_ready 1.0",
                'chairlift_router_source_up{source="file:a.yaml"} 0.0',
                'chairlift_router_source_replicas{source="file:a.yaml"} 3.0',
                'chairlift_router_source_failures_total{source="file:a.yaml"} 2.0',
                "chairlift_router_shared_state_up 1.0", "chairlift_router_shared_state_outages_total 0.0",
                'chairlift_requests_finished_total{outcome="complete"} 1.0',
            ):  # fmt: skip
                assert line in page.splitlines(), line

    run(scenario())


def test_replicas_are_listed_as_top_reads_them_with_sources_and_shared_state() -> None:
    async def scenario() -> None:
        async with routed(complete, complete, keys=KEYS) as fleet:
            router = fleet.running.router
            status = SourceStatus(
                name="--replica", state=SourceState.UP, since=router.clock.now() - 5, num_endpoints=2, num_updates=1,
                num_failures=0, last_error="",
            )  # fmt: skip
            router.source_statuses = lambda: (status,)
            await fleet.http.post(CHAT, json=HELLO, headers=USER)
            listed = (await fleet.http.get("/admin/replicas", headers=ADMIN)).json()
            rows = [row_of_replica(each) for each in listed["replicas"]]
            assert {row.replica for row in rows} == {replica.url for replica in fleet.replicas}
            assert [(row.state, row.kind, row.weight, row.open_requests) for row in rows] == [
                ("healthy", "openai", 1.0, 0.0)
            ] * 2
            assert sorted(row.attempts or 0 for row in rows) == [0, 1]
            assert all(each["resumable"] is False for each in listed["replicas"])
            [source] = listed["sources"]
            assert 5 <= source.pop("state_seconds") < 15
            assert source == {
                "name": "--replica", "state": "up", "num_endpoints": 2, "num_updates": 1, "num_failures": 0,
                "last_error": "",
            }  # fmt: skip
            assert listed["shared_state"]["backend"] == "local" and listed["shared_state"]["is_connected"] is True
            assert (await fleet.http.get("/admin/replicas", headers=USER)).status_code == 403

    run(scenario())


def test_drain_undrain_and_weight() -> None:
    async def scenario() -> None:
        async with routed(complete, complete, keys=KEYS) as fleet:
            first, second = (replica.url for replica in fleet.replicas)
            status, replica = await manage(fleet, "drain", {"replica_id": first})
            assert (status, replica["replica_id"], replica["state"]) == (200, first, "drained")
            for _ in range(4):
                assert (await fleet.http.post(CHAT, json=HELLO, headers=USER)).status_code == 200
            assert len(fleet.replicas[0].requests) == 0
            status, replica = await manage(fleet, "undrain", {"replica_id": first})
            assert status == 200 and replica["state"] != "drained"
            status, replica = await manage(fleet, "weight", {"replica_id": second, "weight": 0})
            assert (status, replica["weight"]) == (200, 0.0)
            before = len(fleet.replicas[1].requests)
            for _ in range(4):
                await fleet.http.post(CHAT, json=HELLO, headers=USER)
            assert len(fleet.replicas[1].requests) == before
            status, replica = await manage(fleet, "weight", {"replica_id": second, "weight": None})
            assert (status, replica["weight"]) == (200, 1.0)

    run(scenario())


@pytest.mark.share(3)
@pytest.mark.parametrize(("verb", "body", "status", "param", "message"), [
    ("drain", {}, 400, "replica_id", "must be the URL of a replica"),
    ("drain", {"replica_id": 5}, 400, "replica_id", "must be the URL of a replica"),
    ("drain", {"replica_id": "http://none:1"}, 404, None, "there is no replica 'http://none:1'; the replicas are http"),
    ("undrain", {"replica_id": "http://none:1"}, 404, None, "there is no replica"),
    ("weight", {"replica_id": "http://none:1", "weight": 1}, 404, None, "there is no replica"),
    ("weight", {"replica_id": "REPLICA"}, 400, "weight", "weight is missing"),
    ("weight", {"replica_id": "REPLICA", "weight": "2"}, 400, "weight", "must be a number of 0 to 1000, or null"),
    ("weight", {"replica_id": "REPLICA", "weight": True}, 400, "weight", "must be a number of 0 to 1000, or null"),
    ("weight", {"replica_id": "REPLICA", "weight": -1}, 400, "weight", "must be a number of 0 to 1000, or null"),
    ("weight", {"replica_id": "REPLICA", "weight": 1001}, 400, "weight", "must be a number of 0 to 1000, or null"),
    ("drain", [1], 400, None, "the body must be a JSON object, got a list"),
])  # fmt: skip
def test_bad_input_changes_nothing(verb: str, body: Any, status: int, param: str | None, message: str) -> None:
    async def scenario() -> None:
        async with routed(complete, keys=KEYS) as fleet:
            if isinstance(body, dict) and body.get("replica_id") == "REPLICA":
                body["replica_id"] = fleet.replicas[0].url
            got, answer = await manage(fleet, verb, body)
            error = answer["error"]
            assert (got, error["param"]) == (status, param), error
            assert message in error["message"]
            listed = (await fleet.http.get("/admin/replicas", headers=ADMIN)).json()["replicas"]
            assert [(each["state"], each["weight"]) for each in listed] == [("healthy", 1.0)]

    run(scenario())


def test_drain_of_the_router_starts_the_shutdown() -> None:
    async def scenario() -> None:
        async with routed(complete, keys=KEYS) as fleet:
            response = await fleet.http.post("/admin/drain", headers=ADMIN)
            assert (response.status_code, response.json()) == (202, {"state": "draining"})
            assert fleet.running.drain_calls == [1]
            assert (await fleet.http.get("/readyz")).status_code == 503

    run(scenario())
