"""GGMLType: the types of tensors in GGUF files, with the elements and bytes of their blocks. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GGMLType:
    """A type of tensors that Chairlift reads.

    A row of a tensor is a sequence of blocks, each with `block_size` elements in `block_bytes` bytes.

    Attributes:
        id: number of the type in the file.
        name: ggml's name of the type, such as Q4_K.
    """

    id: int
    name: str
    block_size: int
    block_bytes: int

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of a row; `columns` must be a multiple of block_size."""
        return columns // self.block_size * self.block_bytes


GGML_TYPES = {
    row[0]: GGMLType(*row)
    for row in (
        (0, "F32", 1, 4), (1, "F16", 1, 2), (30, "BF16", 1, 2),
        (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22), (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34),
        (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210),
        (20, "IQ4_NL", 32, 18), (23, "IQ4_XS", 256, 136), (39, "MXFP4", 32, 17),
    )
}  # fmt: skip
"""Types that Chairlift reads, by their number in the file."""

TYPES_BY_NAME = {each.name: each for each in GGML_TYPES.values()}
"""The same by their names."""

UNSUPPORTED_TYPES = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
"""Names of the types that Chairlift refuses, by their number in the file."""

UNSUPPORTED_TYPE_REMEDY = "take the model's file of type Q4_K_M or Q8_0"
