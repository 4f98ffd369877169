"""CustomIdSet: different names stay different, and cost little."""

import tracemalloc

from chairlift.web.batch_files.custom_id_set import CustomIdSet


def test_different_names_are_different() -> None:
    names = CustomIdSet()
    for name in ("a", "b", "", "\ud800", "é", "a"):
        names.add(name)
    assert len(names) == 5 and all(name in names for name in ("a", "b", "", "\ud800", "é"))
    assert "c" not in names and "e" not in names and 5 not in names


def test_a_name_costs_the_same_however_long_it_is() -> None:
    names = CustomIdSet()
    tracemalloc.start()
    try:
        for number in range(1000):
            names.add(f"{number} {'x' * 2000}")
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(names) == 1000 and num_bytes < 150 * 1000
