"""KINDS, BLOCK_KINDS, CODE_LAYOUTS: the kinds of weights that the native kernels multiply with (kernels.h)."""

from typing import NamedTuple

import torch

from chairlift.model.kernels.cpu import library

KINDS = {
    "bfloat16": library.BFLOAT16, "float16": library.FLOAT16, "float32": library.FLOAT32,
    "int8-channel": library.INT8_CHANNEL, "int8": library.INT8_GROUP, "int6": library.INT6_GROUP,
    "int4": library.INT4_GROUP,
}  # fmt: skip
"""Value of the option `quantization`, or a dtype without quantization -> kind of weight. int6 is no value of the option
(HEAD_KINDS)."""

HEAD_KINDS = {"int4": KINDS["int6"]}
"""Value of the option `quantization` whose lm_head, also as a tied embedding table, has another kind than the layers ->
that kind. Every logit has the rounding errors of the lm_head."""

BLOCK_KINDS = {
    "Q4_0": library.Q4_0, "Q4_1": library.INT4_GROUP, "Q5_0": library.Q5_0, "Q5_1": library.Q5_1,
    "Q8_0": library.Q8_0, "Q4_K": library.Q4_K, "Q5_K": library.Q5_K, "Q6_K": library.Q6_K,
    "IQ4_NL": library.IQ4_NL, "IQ4_XS": library.IQ4_XS, "MXFP4": library.MXFP4,
}  # fmt: skip
"""ggml's type of blocks -> the kind with the same numbers."""

DTYPES = {library.BFLOAT16: torch.bfloat16, library.FLOAT16: torch.float16, library.FLOAT32: torch.float32}
"""Kind of weight -> dtype of its numbers. The other kinds are quantized."""

INPUTS_PER_STEP = {library.BFLOAT16: 2, library.FLOAT16: 2, library.FLOAT32: 1, library.INT8_CHANNEL: 4}
"""Kind without groups -> inputs in a step of a panel."""

SUPER_GROUPS = 8
"""Groups with a common factor of their scales."""


class CodeLayout(NamedTuple):
    """How a kind with groups of 32 inputs is stored.

    Attributes:
        bits: of a code, and steps of a group.
        has_minima: whether a group has a minimum.
        has_super_scales: whether scales are integers of 8 bits with a common factor of float16; else of 16 bits.
        scales: of a group.
    """

    bits: int
    has_minima: bool = False
    has_super_scales: bool = False
    scales: int = 1


CODE_LAYOUTS = {
    library.INT8_GROUP: CodeLayout(8), library.Q8_0: CodeLayout(8), library.Q4_0: CodeLayout(4),
    library.INT4_GROUP: CodeLayout(4, has_minima=True), library.Q5_0: CodeLayout(5),
    library.Q5_1: CodeLayout(5, has_minima=True), library.Q4_K: CodeLayout(4, True, True),
    library.Q5_K: CodeLayout(5, True, True), library.Q6_K: CodeLayout(6, False, True, 2),
    library.IQ4_NL: CodeLayout(4), library.IQ4_XS: CodeLayout(4, False, True), library.MXFP4: CodeLayout(4),
    library.INT6_GROUP: CodeLayout(6),
}  # fmt: skip
"""Kind with groups -> its layout."""


def num_steps(inputs: int, kind: int) -> int:
    """Return the steps of a panel, each of four bytes for each output; inputs are padded to whole steps or groups."""
    if layout := CODE_LAYOUTS.get(kind):
        return -(-inputs // library.GROUP) * layout.bits
    return -(-inputs // INPUTS_PER_STEP[kind])
