"""DiskUsage: bytes are counted once, for their tenant, and one tenant leaves room for others."""

import pytest

from chairlift.web.batch_api.disk_usage import DiskUsage, num_counted, tenant_share


def test_contents_are_counted_once_however_many_names_they_have() -> None:
    usage = DiskUsage(100)
    usage.set("file", "alice", 10, inode=(1, 7))
    usage.set("requests", "alice", 10, inode=(1, 7))
    usage.set("other", "bob", 5, inode=(1, 8))
    assert (usage.num_bytes(), usage.num_bytes("alice"), usage.num_bytes("bob")) == (15, 10, 5)
    usage.remove("file")
    assert usage.num_bytes("alice") == 10
    usage.remove("requests")
    usage.remove("requests")
    assert (usage.num_bytes(), usage.num_bytes("alice")) == (5, 0)


def test_equal_numbers_of_inodes_on_two_file_systems_are_two_contents() -> None:
    usage = DiskUsage(100)
    usage.set("file", "alice", 10, inode=(1, 7))
    usage.set("requests", "alice", 5, inode=(2, 7))
    assert usage.num_bytes("alice") == 15


def test_what_grows_is_counted_at_its_last_size_also_under_another_inode() -> None:
    usage = DiskUsage(100)
    for size in (1, 5, 3):
        usage.set("journal", "alice", size, inode=(1, 7))
        assert usage.num_bytes() == size
    usage.set("journal", "alice", 4, inode=(1, 9))
    assert usage.num_bytes("alice") == 4


def test_a_reservation_replaces_that_of_the_same_name_or_changes_nothing() -> None:
    usage = DiskUsage(10)
    assert usage.reserve("upload", "", 6) == "" and usage.reserve("upload", "", 10) == ""
    assert "have 0 bytes and this one 11 or more, the limit of their sum is 10" in usage.reserve("upload", "", 11)
    assert usage.num_bytes() == 10 and usage.problem("") == "" and "have 10 bytes and this" in usage.problem("", 1)


@pytest.mark.parametrize(
    ("others", "more", "message"),
    [
        (0, 50, ""),
        (0, 51, "your files and batches have 0 bytes"),
        (50, 50, ""),
        (51, 50, ""),
    ],
)
def test_a_tenant_with_a_key_may_use_half(others: int, more: int, message: str) -> None:
    usage = DiskUsage(100)
    usage.set("x", "bob", others)
    problem = usage.problem("alice", more)
    assert problem.startswith(message) and bool(problem) is bool(message)
    assert (tenant_share("", 9), tenant_share("alice", 9)) == (9, 4)


@pytest.mark.parametrize(
    ("amounts", "tenant", "counted"),
    [
        ({}, "alice", 0), ({"alice": 9}, "alice", 9), ({"alice": 90}, "alice", 90), ({"bob": 90}, "alice", 50),
        ({"": 100, "bob": 20}, "alice", 70), ({"bob": 90, "carol": 90, "alice": 1}, "alice", 101),
        ({"bob": 90}, "", 50),
    ],
)  # fmt: skip
def test_what_a_tenant_has_beyond_its_half_is_not_taken_from_the_others(
    amounts: dict[str, int], tenant: str, counted: int
) -> None:  # fmt: skip
    assert num_counted(amounts, tenant, 100) == counted
    usage = DiskUsage(100)
    for name, amount in amounts.items():
        usage.set(name, name, amount)
    assert bool(usage.problem(tenant)) is (counted > 100 or amounts.get(tenant, 0) > tenant_share(tenant, 100))
