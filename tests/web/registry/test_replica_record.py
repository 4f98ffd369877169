"""replica_record.py: the same replica as JSON and as metadata."""

import json

import pytest

from chairlift.router.discovery.endpoint_parser import parse_endpoint
from chairlift.router.endpoint import Endpoint, ReplicaKind
from chairlift.web.registry.replica_record import MAX_META_CHARS, ReplicaRecord


def record(**fields: object) -> ReplicaRecord:
    known = {"url": "http://[::1]:8000", "weight": 0.5, "models": ("a", "b"), "version": "v", "zone": "z"}
    return ReplicaRecord(**{**known, "instance": "i", **fields})  # type: ignore[arg-type]


def test_a_router_reads_what_a_replica_writes() -> None:
    endpoint = Endpoint(
        url="http://[::1]:8000", weight=0.5, models=("a", "b"), kind=ReplicaKind.CHAIRLIFT, version="v", zone="z"
    )
    assert parse_endpoint(json.loads(record().to_json())) == endpoint
    assert parse_endpoint(record().to_meta()) == endpoint
    assert record().name == "[::1]:8000"


@pytest.mark.parametrize("models", [("m" * (MAX_META_CHARS + 1),), ("a,b",)])
def test_models_that_metadata_cannot_hold_are_left_out(models: tuple[str, ...]) -> None:
    assert "models" not in record(models=models).to_meta()
    assert json.loads(record(models=models).to_json())["models"] == list(models)


def test_empty_labels_are_left_out_of_metadata() -> None:
    assert set(record(version="", zone="", models=()).to_meta()) == {"url", "weight", "kind", "instance"}
