"""BlockTable: the blocks that it lists, and their eviction order."""

from chairlift.engine.kv.block_table import BlockTable
from chairlift.engine.kv.free_block_list import NULL_BLOCK


def drawn() -> BlockTable:
    """Return the table of the module's diagram."""
    table = BlockTable(2)
    table.groups[0] += [7, 3, 9, 12]
    table.groups[1] += [NULL_BLOCK, NULL_BLOCK, 4, 8]
    table.first_block_index[1] = 2
    return table


def test_held_skips_what_lies_behind_the_window() -> None:
    assert list(drawn().held()) == [(0, 0, 7), (0, 1, 3), (0, 2, 9), (0, 3, 12), (1, 2, 4), (1, 3, 8)]


def test_the_tail_of_all_groups_leaves_first() -> None:
    """Pitfall 13: blocks released first are evicted first, and a prefix without its tail is still useful."""
    assert list(drawn().tail_first()) == [12, 8, 9, 4, 3, 7]


def test_groups_of_unequal_length_leave_by_index() -> None:
    table = BlockTable(2)
    table.groups[0] += [1]
    table.groups[1] += [2, 3]
    assert list(table.tail_first()) == [3, 1, 2]


def test_a_new_table_holds_nothing() -> None:
    table = BlockTable(3)
    assert list(table.held()) == list(table.tail_first()) == []
    assert (table.num_held, table.capacity, table.num_published, table.released) == (0, 0, 0, False)
