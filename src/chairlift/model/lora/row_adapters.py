"""RowAdapters: the adapters that a model has loaded, and which of them each row of a step has."""

from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.model.lora.adapter_weights import AdapterWeights

Int32 = NDArray[np.int32]


class RowAdapters:
    """Adapters by number, and the rows of each in what is computed next.

    The layers of a model share one, and so each sees the rows without an argument. A load from another thread disturbs
    no step: it puts a new table in the place of the old one.

    Attributes:
        segments: for each adapter of the rows its weights, and int64 [n], its rows in order; empty where no row has
            an adapter.
    """

    def __init__(self, device: torch.device) -> None:
        """Create a table without adapters, whose tensors are on a device."""
        self.segments: tuple[tuple[AdapterWeights, Tensor], ...] = ()
        self._device = device
        self._weights: dict[int, AdapterWeights] = {}
        self._change = Lock()

    def add(self, number: int, weights: AdapterWeights) -> None:
        """Add the adapter of a number that no other one has."""
        assert number > 0, "0 is the model without an adapter"
        with self._change:
            assert number not in self._weights, f"adapter {number} is loaded already"
            self._weights = {**self._weights, number: weights}

    def remove(self, number: int) -> None:
        """Forget an adapter, which no row has any more; an unknown number is ignored."""
        with self._change:
            self._weights = {other: weights for other, weights in self._weights.items() if other != number}

    def use(self, numbers: Int32 | None) -> None:
        """Name the adapter of each row, int32 [T], 0 for none; None for no adapter in any row.

        Raises RuntimeError for a number that is not loaded.
        """
        if numbers is None or not numbers.any():
            self.segments = ()
            return
        weights = self._weights
        found = np.unique(numbers[numbers != 0])
        if missing := [number for number in found.tolist() if number not in weights]:
            raise RuntimeError(f"adapter {missing[0]} is not loaded")
        self.segments = tuple(
            (weights[number], torch.from_numpy(np.flatnonzero(numbers == number)).to(self._device))
            for number in found.tolist()
        )
