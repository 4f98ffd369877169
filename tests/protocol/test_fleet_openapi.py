"""fleet_operations: a fleet's own routes are documented beside those of its router.

tests/fleet/test_fleet_process.py compares the answers of a real fleet with the schemas.
"""

from jsonschema import Draft202012Validator

from chairlift.protocol.fleet_openapi import fleet_operations
from chairlift.protocol.router_openapi import document


def test_the_document_of_a_fleet_is_that_of_a_router_with_two_more_paths() -> None:
    router, fleet = document(["m"])["paths"], document(["m"], fleet_operations())["paths"]
    assert fleet.keys() - router.keys() == {"/admin/fleet", "/admin/fleet/update"}
    body = fleet["/admin/fleet/update"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = Draft202012Validator(body)
    assert all(validator.is_valid(each) for each in ({}, {"model": "m"}, {"model": None, "arguments": ["--seed=1"]}))
    assert not any(validator.is_valid(each) for each in ({"modell": "m"}, {"arguments": "--seed=1"}, {"model": 1}))
