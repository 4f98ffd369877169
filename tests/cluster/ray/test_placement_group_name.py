"""GroupName: the name of a placement group is read back as it was written, and foreign names are none."""

from hypothesis import given
from hypothesis import strategies as st

from chairlift.cluster.ray.placement_group_name import GroupName, next_number
from support_shares import for_each

NAME = GroupName(fleet="a-1", number=7, token="0f", version="abc", replica_type="g5.xl", started_seconds=12.5)


def test_the_names_of_a_replica() -> None:
    assert NAME.text == "chairlift:a-1:7:0f:abc:g5.xl:12.500"
    assert (NAME.actor_name, NAME.replica_id) == ("chairlift:a-1:7", "a-1-7-0f")


@given(st.text(), st.integers(1, 10**6), st.integers(0, 10**10))
def test_a_name_is_read_back_as_it_was_written(replica_type: str, number: int, now: int) -> None:
    name = GroupName.new("fleet", number, version="0123", replica_type=replica_type, now=now + 0.125)
    assert GroupName.parse(name.text, "fleet") == name
    assert GroupName.parse(name.text, "other") is None


@for_each(
    "text",
    ["", "x", "chairlift:a-1", "other:a-1:7:0f:abc::12", "chairlift:a-1:x:0f:abc::12", "chairlift:a-1:7:0f:abc::soon",
     "chairlift:a-1:7:0f:abc::12:more"],
)  # fmt: skip
def test_a_foreign_name_is_no_replica(text: str) -> None:
    assert GroupName.parse(text, "a-1") is None


def test_two_replicas_of_one_number_have_one_actor_name_and_two_ids() -> None:
    first, second = (GroupName.new("a", 1, version="", replica_type="", now=1) for _ in range(2))
    assert first.actor_name == second.actor_name
    assert first.replica_id != second.replica_id


def test_the_next_number_is_above_all_others() -> None:
    assert next_number([]) == 1
    assert next_number([NAME]) == 8
