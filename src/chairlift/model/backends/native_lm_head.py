"""LMHead: prepares the library's lm_head call for the rows of a step, and reads its output; NativeHead: one alone."""

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.model.kernels.cpu import kernel_structs, library
from chairlift.model.kernels.cpu.packing import PackedWeight
from chairlift.model.kernels.cpu.threads import ThreadPool
from chairlift.model.sampling.lm_head_output import LMHeadOutput, LogitsRequest

_INITIAL_ROWS = 256
_NO_VALUES, _NO_IDS = np.empty(0, np.float32), np.empty(0, np.int64)


class LMHead:
    """One call at a time: prepare(), then the library's work, then output().

    Owns: the memory that the call points to.

    Attributes:
        call: the library's struct of the last prepared call.
        dtype: of hidden states: bfloat16 or float32.
    """

    def __init__(
        self, weight: PackedWeight, vocab_size: int, softcap: float | None, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        """Store the packed matrix [V, H], the soft cap of its logits, and the dtype of hidden states."""
        self.dtype = dtype
        self._weight = weight
        self._vocab_size = vocab_size
        self._softcap = softcap
        self._no_logits = torch.empty(0, vocab_size, device="cpu")
        self._logits = self._no_logits
        self._call_memory: tuple[NDArray[np.generic], ...] = ()
        self.call = kernel_structs.LMHeadCall(weight=ctypes.pointer(weight.struct))
        self._allocate(_INITIAL_ROWS)

    def _allocate(self, rows: int) -> None:
        self._default_rows = np.zeros((rows, 2), np.uint64)  # LogitsRows without logits and without a mask
        self._values, self._ids = np.empty(2 * rows, np.float32), np.empty(2 * rows, np.int64)
        self._default_rows_address = self._default_rows.ctypes.data
        self.call.values, self.call.ids = self._values.ctypes.data, self._ids.ctypes.data

    def prepare(self, count: int, request: LogitsRequest) -> None:
        """Set up the call for `count` rows."""
        if count > len(self._default_rows):
            self._allocate(2 * count)
        call, self._logits, self._call_memory = self.call, self._no_logits, ()
        call.rows, call.mask_words = self._default_rows_address, 0
        masks = request.masks if request.masks is not None and len(request.masks.sample_indices) else None
        needs_logits = request.needs_logits.any()
        if not needs_logits and masks is None:
            return
        rows, bits = np.zeros((count, 2), np.uint64), np.empty((0, 0), np.int32)
        if needs_logits:
            width = self._weight.struct.panels * library.PANEL
            logits = torch.empty(int(np.count_nonzero(request.needs_logits)), width, dtype=torch.float32, device="cpu")
            rows[request.needs_logits, 0] = (
                logits.data_ptr() + np.arange(len(logits)) * logits.stride(0) * logits.itemsize
            )
            self._logits = logits[:, : self._vocab_size]
        if masks is not None:
            bits = np.ascontiguousarray(masks.bitmask)
            rows[request.masked_rows, 1] = bits.ctypes.data + np.arange(len(bits)) * bits.strides[0]
            call.mask_words = bits.shape[1]
        call.rows, self._call_memory = rows.ctypes.data, (rows, bits)

    def output(self, count: int, request: LogitsRequest) -> LMHeadOutput:
        """Return the output of the prepared call; the largest logits and their ids are valid until the next call."""
        logits, self._logits, self._call_memory = self._logits, self._no_logits, ()
        max_logits, argmax_ids = self._values[:count], self._ids[:count]
        masked_max_logits, masked_argmax_ids = _NO_VALUES, _NO_IDS
        if request.masks is not None:
            rows = count + request.masked_rows
            masked_max_logits, ids = self._values[rows], self._ids[rows]
            masked_argmax_ids = np.where(ids < self._vocab_size, ids, 0)
        if self._softcap is not None:
            cap = self._softcap
            max_logits, masked_max_logits = (
                _softcap_logits(torch.from_numpy(each), cap).numpy() for each in (max_logits, masked_max_logits)
            )
            logits = _softcap_logits(logits, cap)
        return LMHeadOutput(max_logits, argmax_ids, masked_max_logits, masked_argmax_ids, logits)


class NativeHead:
    """The lm_head of a model whose layers do not run as a program of the library.

    Owns: a decoder of the library without operations.
    """

    def __init__(
        self, weight: PackedWeight, vocab_size: int, softcap: float | None, pool: ThreadPool, instruction_set: str,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:  # fmt: skip
        self._native = library.load()
        self._lm_head = LMHead(weight, vocab_size, softcap, dtype)
        self._decoder = library.DecoderHandle(pool.handle, instruction_set)
        self._handle = self._decoder.address

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits float32 [R, V] from hidden states [R, H]."""
        return self.head(hidden, LogitsRequest(np.ones(len(hidden), bool))).logits

    def head(self, hidden: Tensor, request: LogitsRequest) -> LMHeadOutput:
        """Compute the requested output of hidden states [R, H], valid until the next call. Raises MemoryError."""
        return score(self._handle, self._lm_head, hidden, request)


def score(decoder: int, lm_head: LMHead, hidden: Tensor, request: LogitsRequest) -> LMHeadOutput:
    """Compute the requested output of hidden states [R, H] with a decoder of the library.

    Raises MemoryError, and ValueError for states of another width, beyond which the library would read.
    """
    count, inputs = len(hidden), lm_head.call.weight.contents.inputs
    if hidden.shape[1] != inputs:
        raise ValueError(f"the lm_head takes {inputs} inputs, and {hidden.shape[1]} are given")
    if hidden.dtype is not lm_head.dtype or hidden.stride(1) != 1:
        hidden = hidden.to(lm_head.dtype).contiguous()
    lm_head.prepare(count, request)
    call, is_f32 = ctypes.byref(lm_head.call), lm_head.dtype is torch.float32
    if library.load().lm_head(decoder, hidden.data_ptr(), is_f32, hidden.stride(0), count, call) < 0:
        raise MemoryError("no memory for the lm_head")
    return lm_head.output(count, request)


def _softcap_logits(logits: Tensor, cap: float) -> Tensor:
    """Apply a soft cap; the logit of a banned token stays -inf."""
    return (torch.tanh(logits / cap) * cap).masked_fill_(logits == -torch.inf, -torch.inf)
