"""fingerprint: a digest of a model folder's config and of samples of every tensor."""

import hashlib
import json
from pathlib import Path
from typing import BinaryIO

HEADER_LENGTH_BYTES = 8

SAMPLE_BYTES = 64
"""Bytes at three places of a tensor that its fingerprint has: training changes nearly every weight of a tensor."""


def fingerprint(folder: Path, computation: str) -> str:
    """Return a digest of a folder's config and of samples of every tensor, equal for copies on other machines.

    `computation` names how the weights are used: dtype and quantization.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(f"\n{file.name} {file.stat().st_size}\n".encode())
        with file.open("rb") as opened:
            _update_with_samples(digest, opened)
    digest.update(f"\n{computation}".encode())
    return digest.hexdigest()


def _update_with_samples(digest: "hashlib._Hash", opened: BinaryIO) -> None:
    """Add a safetensors file to a digest: its header, and bytes at the start, middle and end of each tensor."""
    header = opened.read(int.from_bytes(opened.read(HEADER_LENGTH_BYTES), "little"))
    digest.update(header)
    first = opened.tell()
    tensors = (entry for name, entry in json.loads(header).items() if name != "__metadata__")
    for start, end in sorted(entry["data_offsets"] for entry in tensors):
        for at in (start, (start + end) // 2, max(start, end - SAMPLE_BYTES)):
            opened.seek(first + at)
            digest.update(opened.read(min(SAMPLE_BYTES, end - at)))
