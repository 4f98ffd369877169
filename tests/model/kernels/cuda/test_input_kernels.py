"""input_kernels: padding rows and tokens, as graphs have them; the rest is in test_device_input_batch."""

import torch

from chairlift.model.kernels.cuda.input_kernels import apply_new_blocks, build_inputs, variants


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_padding_has_no_tokens_and_no_address() -> None:
    tables = torch.full((1, 3, 8), -1, dtype=torch.int32)
    packed = torch.cat([int32(2, 1, 5, 0), int32(-1), int32(2, 0, 0, 4), int32(2, 0, 1, 6)])
    apply_new_blocks(packed, 5, 2, tables)
    assert tables[0, 2, :2].tolist() == [4, 6] and (tables[0, :2] == -1).all()
    out = {
        "input_ids": torch.full((4,), 99), "positions": torch.full((4,), 99), "cu_seqlens": int32(*[9] * 4),
        "seq_lens": int32(*[9] * 3), "slot_mapping": torch.full((1, 4), 99),
        "block_table": torch.zeros(1, 3, 2, dtype=torch.int32), "sample_slots": int32(9, 9, 9),
    }  # fmt: skip
    build_inputs(packed, 1, 1, 4, -1, tables, int32(7, 8, 43), block_size=4, writes=True, **out)
    assert out["input_ids"].tolist() == [43, 0, 0, 0] and out["positions"].tolist() == [5, 0, 0, 0]
    assert out["cu_seqlens"].tolist() == [0, 1, 1, 1] and out["seq_lens"].tolist() == [6, 0, 0]
    assert out["sample_slots"].tolist() == [9, -1, -1]
    assert out["slot_mapping"].tolist() == [[25, -1, -1, -1]] and out["block_table"][0].tolist() == [
        [4, 6],
        [0, 0],
        [0, 0],
    ]


def test_each_kernel_has_variants() -> None:
    assert {variant.name for variant in variants()} >= {"new blocks", "step inputs, 1 groups"}
