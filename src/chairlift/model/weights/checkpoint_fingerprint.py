"""fingerprint: a digest of a model folder's config and of samples of every tensor."""

import hashlib
import json
from pathlib import Path

from chairlift.model.config.quantized_checkpoint import folder_quantization
from chairlift.model.weights.formats.registry import format_of
from chairlift.model.weights.stored_weight import WeightFile

SAMPLE_BYTES = 64
"""Bytes at three places of a tensor that its fingerprint has: training changes nearly every weight of a tensor."""

LAYOUT_VERSION = 1
"""Raised when the contents of a cached block get another meaning, so that no older block is read as a new one."""


def fingerprint(folder: Path, computation: str) -> str:
    """Return a digest of a folder's config and of samples of every tensor, equal for copies anywhere.

    `computation` names how the weights are used: dtype and quantization.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    if (quantization := folder_quantization(folder)) is not None:  # it may be in a file of its own
        digest.update(json.dumps(quantization[2], sort_keys=True).encode())
    # Sorted by digest: neither the names of files nor their order count.
    for file_digest in sorted(_file_digest(stored) for stored in format_of(folder).stored_files(folder)):
        digest.update(file_digest)
    digest.update(f"\n{LAYOUT_VERSION} {computation}".encode())
    return digest.hexdigest()


def _file_digest(stored: WeightFile) -> bytes:
    """Return a digest of a file's size, its header and samples of its tensors."""
    digest = hashlib.sha256(f"{stored.path.stat().st_size}\n".encode())
    digest.update(stored.header)
    with stored.path.open("rb") as opened:
        for start, end in sorted(stored.spans):
            for at in (start, (start + end) // 2, max(start, end - SAMPLE_BYTES)):
                opened.seek(at)
                digest.update(opened.read(min(SAMPLE_BYTES, end - at)))
    return digest.digest()
