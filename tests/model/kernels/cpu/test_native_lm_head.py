"""Head: what was asked lies where the library looks, however many rows there are; its answer is of that call."""

import ctypes

import numpy as np
import torch

from chairlift.engine.step_plan import TokenMasks
from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.native_lm_head import Head
from chairlift.model.kernels.cpu.packing import Packer
from chairlift.model.kernels.cpu.threads import get_thread_pool
from chairlift.model.sampling.lm_head_output import LogitsRequest
from support_native import need_native

VOCAB, WIDTH = 77, 40


def head(softcap: float | None = None) -> Head:
    need_native()
    weight, _ = Packer(get_thread_pool(1), library.BFLOAT16).pack([torch.ones(VOCAB, WIDTH, dtype=torch.bfloat16)])
    return Head(weight, VOCAB, softcap)


def asked_rows(made: Head, count: int) -> list[tuple[int, int]]:
    """What the library reads: addresses of logits and of masks, 0 for none."""
    rows = (library.HeadRow * count).from_address(made.call.wanted)
    return [(row.logits or 0, row.allowed or 0) for row in rows]


def test_where_nothing_is_wanted_the_rows_say_so_also_beyond_the_first_room() -> None:
    made = head()
    for count in (1, 256, 257, 1000, 3):
        made.ask(count, LogitsRequest(np.zeros(count, bool)))
        assert made.call.words == 0 and asked_rows(made, count) == [(0, 0)] * count
        values = (ctypes.c_float * (2 * count)).from_address(made.call.values)
        ids = (ctypes.c_int64 * (2 * count)).from_address(made.call.ids)
        values[:], ids[:] = range(2 * count), range(2 * count)
        found = made.answer(count, LogitsRequest(np.zeros(count, bool)))
        assert found.max_logits.tolist() == found.argmax_ids.tolist() == list(range(count)) and found.logits.shape == (
            0,
            VOCAB,
        )


def test_kept_rows_and_masks_are_pointed_at_and_the_next_call_points_at_neither() -> None:
    made, bits = head(), np.arange(12, dtype=np.int32).reshape(2, 6)[:, ::2]
    wanted = LogitsRequest(np.array([False, True, True, False]), TokenMasks(np.array([0, 2], np.int32), bits))
    made.ask(4, wanted)
    rows = asked_rows(made, 4)
    assert [bool(logits) for logits, _ in rows] == [False, True, True, False]
    assert rows[2][0] - rows[1][0] == 128 * 4, "whole panels"
    assert [bool(allowed) for _, allowed in rows] == [True, False, True, False] and made.call.words == 3
    words = [(ctypes.c_int32 * 3).from_address(rows[place][1])[:] for place in (0, 2)]
    assert words == bits.tolist()
    ids = (ctypes.c_int64 * 8).from_address(made.call.ids)
    ids[:] = [1, 2, 3, 4, 70, 0, VOCAB, 0]
    found = made.answer(4, wanted)
    assert found.masked_argmax_ids.tolist() == [70, 0], "an id that exists, also where nothing is allowed"
    assert found.logits.shape == (2, VOCAB)
    made.ask(4, LogitsRequest(np.zeros(4, bool)))
    assert asked_rows(made, 4) == [(0, 0)] * 4 and made.call.words == 0


def test_a_cap_holds_for_all_that_is_said_and_what_is_banned_stays_banned() -> None:
    made, wanted = (
        head(30.0),
        LogitsRequest(np.ones(1, bool), TokenMasks(np.zeros(1, np.int32), np.full((1, 3), -1, np.int32))),
    )
    made.ask(1, wanted)
    logits = torch.linspace(-90, 90, VOCAB)
    logits[5] = -torch.inf
    (ctypes.c_float * VOCAB).from_address(asked_rows(made, 1)[0][0])[:] = logits.tolist()
    (ctypes.c_float * 2).from_address(made.call.values)[:] = [90.0, -torch.inf]
    (ctypes.c_int64 * 2).from_address(made.call.ids)[:] = [76, 2**31 - 1]
    found = made.answer(1, wanted)
    expected = torch.tanh(logits / 30.0) * 30.0
    assert found.max_logits.tolist() == [expected[76].item()] and found.masked_max_logits.tolist() == [-np.inf]
    assert found.logits[0, 5] == -torch.inf and torch.equal(found.logits[0, 6:], expected[6:])
