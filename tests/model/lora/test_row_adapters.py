"""RowAdapters: which rows have which adapter, and what a missing one does."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from chairlift.model.lora.adapter_weights import AdapterWeights
from chairlift.model.lora.row_adapters import RowAdapters

ONE, TWO = AdapterWeights({}), AdapterWeights({})


def made() -> RowAdapters:
    adapters = RowAdapters(torch.device("cpu"))
    adapters.add(1, ONE)
    adapters.add(7, TWO)
    return adapters


def rows_of(adapters: RowAdapters) -> list[tuple[int, list[int]]]:
    return [(1 if weights is ONE else 7, rows.tolist()) for weights, rows in adapters.segments]


def test_each_adapter_has_its_rows_in_order() -> None:
    adapters = made()
    adapters.use(np.array([7, 0, 1, 7, 0, 7], np.int32))
    assert rows_of(adapters) == [(1, [2]), (7, [0, 3, 5])]


@pytest.mark.parametrize("numbers", [None, np.zeros(3, np.int32), np.empty(0, np.int32)])
def test_without_adapters_there_is_nothing_to_do(numbers: np.ndarray | None) -> None:
    adapters = made()
    adapters.use(np.array([7], np.int32))
    adapters.use(numbers)
    assert adapters.segments == ()


def test_an_adapter_that_is_removed_is_missing_and_one_that_runs_goes_on() -> None:
    adapters = made()
    adapters.use(np.array([7], np.int32))
    adapters.remove(7)
    adapters.remove(99)
    assert rows_of(adapters) == [(7, [0])]
    with pytest.raises(RuntimeError, match="adapter 7 is not loaded"):
        adapters.use(np.array([1, 7], np.int32))
    adapters.add(7, TWO)
    adapters.use(np.array([7], np.int32))
    assert rows_of(adapters) == [(7, [0])]


def test_a_number_is_added_once() -> None:
    with pytest.raises(AssertionError, match="loaded already"):
        made().add(7, ONE)


def test_no_adapter_is_lost_when_several_threads_load_at_once() -> None:
    adapters = RowAdapters(torch.device("cpu"))

    def load(first: int) -> None:
        for number in range(first, first + 300):
            adapters.add(number, ONE)
            if number % 3 == 0:
                adapters.remove(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(load, (1, 1001, 2001, 3001)))
    kept = [number for first in (1, 1001, 2001, 3001) for number in range(first, first + 300) if number % 3]
    adapters.use(np.array(kept, np.int32))
    assert len(adapters.segments) == len(kept)
