"""LiveBytes: the bytes of the tensors that torch's operations have made and that are still alive."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that operations made and that are still alive, and the most there ever were.

    What was there `before` is not counted when an operation changes it.
    """

    def __init__(self, before: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known = {tensor.untyped_storage().data_ptr() for tensor in before}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self._known:
                self._add(tensor)
        return result

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        self._known.add(place)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, place, size)

    def _drop(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.now -= size
