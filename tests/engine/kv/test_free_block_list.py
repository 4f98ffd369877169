"""FreeBlockList: its order, its O(1) operations, and a state machine that compares it with a plain list."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import DataObject, data, sampled_from

from chairlift.core.errors import OutOfBlocks
from chairlift.engine.kv.free_block_list import FreeBlockList


def filled(num_blocks: int) -> FreeBlockList:
    """Return a list with all ids below num_blocks, in order."""
    free = FreeBlockList(num_blocks)
    for block in range(num_blocks):
        free.push(block)
    return free


def test_blocks_are_taken_in_the_order_in_which_they_were_released() -> None:
    free = FreeBlockList(3)
    assert list(free) == [] and free.front is None
    for block in (1, 2, 0):
        free.push(block)
    assert list(free) == [1, 2, 0] and free.front == 1
    assert [free.pop(), free.pop(), free.pop()] == [1, 2, 0]


def test_a_revived_block_leaves_from_the_middle() -> None:
    free = filled(4)
    free.remove(2)
    assert list(free) == [0, 1, 3] and 2 not in free


def test_a_block_gives_its_place_to_another_one() -> None:
    free = filled(5)
    free.replace(1, 4)
    assert list(free) == [0, 4, 2, 3]
    free.replace(2, 4)
    assert list(free) == [0, 4, 3]


def test_an_empty_list_refuses_with_both_numbers() -> None:
    with pytest.raises(OutOfBlocks, match=r"0 of 0"):
        FreeBlockList(0).pop()


def test_a_block_without_contents_is_taken_before_all_others() -> None:
    free = FreeBlockList(3)
    free.push(0)
    free.discard(1)
    free.discard(2)
    assert list(free) == [2, 1, 0]


@pytest.mark.parametrize("give_back", [FreeBlockList.push, FreeBlockList.discard])
def test_a_free_block_cannot_be_given_back(give_back: Callable[[FreeBlockList, int], None]) -> None:
    with pytest.raises(AssertionError, match="block 1 is released twice"):
        give_back(filled(2), 1)


def test_a_held_block_cannot_be_removed() -> None:
    free = filled(2)
    free.pop()
    with pytest.raises(AssertionError, match="block 0 is not free"):
        free.remove(0)


class AgainstAPlainList(RuleBasedStateMachine):
    """Any sequence of pops, pushes and removals gives what a plain list would give."""

    def __init__(self) -> None:
        super().__init__()
        self.free = filled(7)
        self.model = list(range(7))
        self.held: list[int] = []

    @precondition(lambda self: self.model)
    @rule()
    def pop(self) -> None:
        assert self.free.pop() == self.model[0]
        self.held.append(self.model.pop(0))

    @precondition(lambda self: self.held)
    @rule(choice=data())
    def push(self, choice: DataObject) -> None:
        block = choice.draw(sampled_from(self.held))
        self.held.remove(block)
        self.free.push(block)
        self.model.append(block)

    @precondition(lambda self: self.held)
    @rule(choice=data())
    def discard(self, choice: DataObject) -> None:
        block = choice.draw(sampled_from(self.held))
        self.held.remove(block)
        self.free.discard(block)
        self.model.insert(0, block)

    @precondition(lambda self: self.model)
    @rule(choice=data())
    def remove(self, choice: DataObject) -> None:
        block = choice.draw(sampled_from(self.model))
        self.free.remove(block)
        self.model.remove(block)
        self.held.append(block)

    @invariant()
    def same_order_and_count(self) -> None:
        assert list(self.free) == self.model and len(self.free) == len(self.model)


TestAgainstAPlainList = AgainstAPlainList.TestCase
TestAgainstAPlainList.settings = settings(max_examples=50)
