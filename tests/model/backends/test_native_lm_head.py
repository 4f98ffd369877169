"""LMHead: the call's rows, masks and memory for any number of rows, and the output of that call."""

import ctypes

import numpy as np
import pytest
import torch

from chairlift.engine.step_plan import TokenMasks
from chairlift.model.backends.native_lm_head import LMHead, NativeHead
from chairlift.model.kernels.cpu import kernel_structs, library
from chairlift.model.kernels.cpu.instruction_sets import selected_instruction_set
from chairlift.model.kernels.cpu.packing import Packer
from chairlift.model.kernels.cpu.threads import get_thread_pool
from chairlift.model.sampling.lm_head_output import LogitsRequest
from support_native import need_native

VOCAB, WIDTH = 77, 40


def head(softcap: float | None = None) -> LMHead:
    need_native()
    weight, _ = Packer(get_thread_pool(1), library.BFLOAT16).pack([torch.ones(VOCAB, WIDTH, dtype=torch.bfloat16)])
    return LMHead(weight, VOCAB, softcap)


def call_rows(made: LMHead, count: int) -> list[tuple[int, int]]:
    """Return the rows that the library reads: addresses of logits and masks, 0 for none."""
    rows = (kernel_structs.LogitsRow * count).from_address(made.call.rows)
    return [(row.logits or 0, row.bitmask or 0) for row in rows]


def test_where_nothing_is_wanted_the_rows_say_so_also_beyond_the_first_room() -> None:
    made = head()
    for count in (1, 256, 257, 1000, 3):
        made.prepare(count, LogitsRequest(np.zeros(count, bool)))
        assert made.call.mask_words == 0 and call_rows(made, count) == [(0, 0)] * count
        values = (ctypes.c_float * (2 * count)).from_address(made.call.values)
        ids = (ctypes.c_int64 * (2 * count)).from_address(made.call.ids)
        values[:], ids[:] = range(2 * count), range(2 * count)
        found = made.output(count, LogitsRequest(np.zeros(count, bool)))
        assert found.max_logits.tolist() == found.argmax_ids.tolist() == list(range(count)) and found.logits.shape == (
            0,
            VOCAB,
        )


def test_kept_rows_and_masks_are_pointed_at_and_the_next_call_points_at_neither() -> None:
    made, bits = head(), np.arange(12, dtype=np.int32).reshape(2, 6)[:, ::2]
    request = LogitsRequest(np.array([False, True, True, False]), TokenMasks(np.array([0, 2], np.int32), bits))
    made.prepare(4, request)
    rows = call_rows(made, 4)
    assert [bool(logits) for logits, _ in rows] == [False, True, True, False]
    assert rows[2][0] - rows[1][0] == 128 * 4, "whole panels"
    assert [bool(bitmask) for _, bitmask in rows] == [True, False, True, False] and made.call.mask_words == 3
    words = [(ctypes.c_int32 * 3).from_address(rows[row][1])[:] for row in (0, 2)]
    assert words == bits.tolist()
    ids = (ctypes.c_int64 * 8).from_address(made.call.ids)
    ids[:] = [1, 2, 3, 4, 70, 0, VOCAB, 0]
    found = made.output(4, request)
    assert found.masked_argmax_ids.tolist() == [70, 0], "an existing id, also if no token is allowed"
    assert found.logits.shape == (2, VOCAB)
    made.prepare(4, LogitsRequest(np.zeros(4, bool)))
    assert call_rows(made, 4) == [(0, 0)] * 4 and made.call.mask_words == 0


def test_a_cap_holds_for_all_that_is_said_and_what_is_banned_stays_banned() -> None:
    made, request = (
        head(30.0),
        LogitsRequest(np.ones(1, bool), TokenMasks(np.zeros(1, np.int32), np.full((1, 3), -1, np.int32))),
    )
    made.prepare(1, request)
    logits = torch.linspace(-90, 90, VOCAB)
    logits[5] = -torch.inf
    (ctypes.c_float * VOCAB).from_address(call_rows(made, 1)[0][0])[:] = logits.tolist()
    (ctypes.c_float * 2).from_address(made.call.values)[:] = [90.0, -torch.inf]
    (ctypes.c_int64 * 2).from_address(made.call.ids)[:] = [76, 2**31 - 1]
    found = made.output(1, request)
    expected = torch.tanh(logits / 30.0) * 30.0
    assert found.max_logits.tolist() == [expected[76].item()] and found.masked_max_logits.tolist() == [-np.inf]
    assert found.logits[0, 5] == -torch.inf and torch.equal(found.logits[0, 6:], expected[6:])


def test_a_head_alone_computes_the_logits_of_its_matrix_and_their_largest() -> None:
    need_native()
    generator = torch.Generator().manual_seed(1)
    matrix, hidden = (torch.randn(rows, WIDTH, generator=generator).bfloat16() for rows in (VOCAB, 5))
    pool = get_thread_pool(2)
    weight, _ = Packer(pool, library.BFLOAT16).pack([matrix])
    exact = hidden.double() @ matrix.double().T
    for softcap in (None, 3.0):
        alone = NativeHead(weight, VOCAB, softcap, pool, selected_instruction_set())
        expected = exact if softcap is None else softcap * torch.tanh(exact / softcap)
        assert torch.allclose(alone.logits(hidden).double(), expected, atol=1e-4)
        assert torch.allclose(alone.logits(hidden.float()).double(), expected, atol=1e-4)
        found = alone.head(hidden, LogitsRequest(np.zeros(5, bool)))
        assert found.argmax_ids.tolist() == exact.argmax(1).tolist() and not len(found.logits)


def test_states_of_another_width_are_refused() -> None:
    need_native()
    pool = get_thread_pool(2)
    weight, _ = Packer(pool, library.BFLOAT16).pack([torch.ones(VOCAB, WIDTH, dtype=torch.bfloat16)])
    head = NativeHead(weight, VOCAB, None, pool, selected_instruction_set())
    for width in (WIDTH - 1, WIDTH + 1):
        with pytest.raises(ValueError, match=f"the lm_head takes {WIDTH} inputs, and {width} are given"):
            head.logits(torch.ones(3, width, dtype=torch.bfloat16))
