"""fleet_operations: the OpenAPI operations that a fleet's router has in addition to those of a router."""

from collections.abc import Iterable

from chairlift.protocol import response_schemas as schemas
from chairlift.protocol.openapi import ADMIN, Schema, make_operation

_UPDATE: Schema = {
    "type": "object", "additionalProperties": False,
    "properties": {
        "model": {"type": ["string", "null"], "description": "Model of the new replicas; null keeps the one of now"},
        "arguments": {
            "type": ["array", "null"], "items": {"type": "string"},
            "description": "Options of `chairlift serve` for the new replicas, instead of all before; null keeps them",
        },
    },
}  # fmt: skip


def fleet_operations() -> Iterable[tuple[str, str, Schema]]:
    """Yield path, method and operation of each of these routes."""
    yield "/admin/fleet", "get", make_operation(
        "Replicas of the fleet, the last scaling decisions with their numbers, and what is being updated",
        schemas.FLEET, error_statuses="404",
    ) | ADMIN  # fmt: skip
    yield "/admin/fleet/update", "post", make_operation(
        "Replace the replicas one by one by those of another model or other options", schemas.FLEET, body=_UPDATE,
        status="202", error_statuses="404",
    ) | ADMIN  # fmt: skip
