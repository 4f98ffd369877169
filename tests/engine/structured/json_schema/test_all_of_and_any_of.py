"""Conjunctions and disjunctions of schemas."""

from chairlift.engine.structured.json_schema.all_of_and_any_of import all_of, any_of


def test_a_conjunction_is_one_object_where_keywords_do_not_meet() -> None:
    assert all_of([{"type": "string"}, True, {"minLength": 1}]) == {"type": "string", "minLength": 1}
    assert all_of([{"type": "string"}, {"type": "null"}]) == {"type": "string", "allOf": [{"type": "null"}]}
    assert all_of([{"allOf": [{"minimum": 1}]}, {"allOf": [{"minimum": 2}]}]) == {
        "allOf": [{"minimum": 1}, {"allOf": [{"minimum": 2}]}]
    }
    assert all_of([]) is True and all_of([{}, True]) is True and all_of([{"type": "null"}, False]) is False


def test_keywords_that_depend_on_each_other_stay_apart() -> None:
    closed, other = {"properties": {"a": True}, "additionalProperties": False}, {"patternProperties": {"b": True}}
    assert all_of([closed, other]) == {**closed, "allOf": [other]}
    assert all_of([{"items": False}, {"prefixItems": [True]}]) == {"items": False, "allOf": [{"prefixItems": [True]}]}


def test_a_disjunction() -> None:
    one, other = {"type": "string"}, {"type": "null"}
    assert any_of([one, False, other]) == {"anyOf": [one, other]}
    assert any_of([one, False]) == one and any_of([one, True]) is True and any_of([False]) is False
