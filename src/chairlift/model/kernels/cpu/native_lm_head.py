"""Head: what a decoder's head is asked of the rows of a step, in the library's words, and what it answers."""

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.packing import PackedWeight
from chairlift.model.sampling.lm_head_output import LMHeadOutput, LogitsRequest

_FIRST_ROWS = 256
_NO_VALUES, _NO_IDS = np.empty(0, np.float32), np.empty(0, np.int64)


class Head:
    """One call at a time: ask, have the library work, take the answer.

    Owns: what the call points at.

    Attributes:
        call: of the library, what was asked last.
    """

    def __init__(self, weight: PackedWeight, vocab_size: int, softcap: float | None) -> None:
        """Take the packed matrix [V, H], and the cap of its logits."""
        self._weight = weight
        self._vocab_size = vocab_size
        self._softcap = softcap
        self._none = torch.empty(0, vocab_size, device="cpu")
        self._logits = self._none
        self._asked: tuple[NDArray[np.generic], ...] = ()
        self.call = library.HeadCall(weight=ctypes.pointer(weight.struct))
        self._make_room(_FIRST_ROWS)

    def _make_room(self, rows: int) -> None:
        self._nothing = np.zeros((rows, 2), np.uint64)  # HeadRows that want no logits and have no mask
        self._values, self._ids = np.empty(2 * rows, np.float32), np.empty(2 * rows, np.int64)
        self._nothing_at = self._nothing.ctypes.data
        self.call.values, self.call.ids = self._values.ctypes.data, self._ids.ctypes.data

    def ask(self, count: int, wanted: LogitsRequest) -> None:
        """Say what is wanted of so many rows."""
        if count > len(self._nothing):
            self._make_room(2 * count)
        call, self._logits, self._asked = self.call, self._none, ()
        call.wanted, call.words = self._nothing_at, 0
        masks = wanted.masks if wanted.masks is not None and len(wanted.masks.sample_indices) else None
        keeps = wanted.needs_logits.any()
        if not keeps and masks is None:
            return
        rows, bits = np.zeros((count, 2), np.uint64), np.empty((0, 0), np.int32)
        if keeps:
            width = self._weight.struct.panels * library.PANEL
            kept = torch.empty(int(np.count_nonzero(wanted.needs_logits)), width, dtype=torch.float32, device="cpu")
            rows[wanted.needs_logits, 0] = kept.data_ptr() + np.arange(len(kept)) * kept.stride(0) * kept.itemsize
            self._logits = kept[:, : self._vocab_size]
        if masks is not None:
            bits = np.ascontiguousarray(masks.bitmask)
            rows[wanted.masked_rows, 1] = bits.ctypes.data + np.arange(len(bits)) * bits.strides[0]
            call.words = bits.shape[1]
        call.wanted, self._asked = rows.ctypes.data, (rows, bits)

    def answer(self, count: int, wanted: LogitsRequest) -> LMHeadOutput:
        """Return what the library said of what was asked; peaks and best ids are good until the next call."""
        logits, self._logits, self._asked = self._logits, self._none, ()
        peaks, best, allowed, allowed_best = self._values[:count], self._ids[:count], _NO_VALUES, _NO_IDS
        if wanted.masks is not None:
            rows = count + wanted.masked_rows
            allowed, ids = self._values[rows], self._ids[rows]
            allowed_best = np.where(ids < self._vocab_size, ids, 0)
        if self._softcap is not None:
            cap = self._softcap
            peaks, allowed = (_softcap_logits(torch.from_numpy(each), cap).numpy() for each in (peaks, allowed))
            logits = _softcap_logits(logits, cap)
        return LMHeadOutput(peaks, best, allowed, allowed_best, logits)


def _softcap_logits(logits: Tensor, cap: float) -> Tensor:
    """What is banned stays so."""
    return (torch.tanh(logits / cap) * cap).masked_fill_(logits == -torch.inf, -torch.inf)
