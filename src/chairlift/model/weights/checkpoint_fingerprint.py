"""fingerprint: a digest of a model folder's config and of samples of every tensor."""

import hashlib
import json
from pathlib import Path

from chairlift.model.config.quantized_checkpoint import folder_quantization
from chairlift.model.weights.formats.registry import format_of

SAMPLE_BYTES = 64
"""Bytes at three places of a tensor that its fingerprint has: training changes nearly every weight of a tensor."""


def fingerprint(folder: Path, computation: str) -> str:
    """Return a digest of a folder's config and of samples of every tensor, equal for copies on other machines.

    `computation` names how the weights are used: dtype and quantization.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    if (quantization := folder_quantization(folder)) is not None:  # it may be in a file of its own
        digest.update(json.dumps(quantization[2], sort_keys=True).encode())
    for stored in format_of(folder).stored_files(folder):
        digest.update(f"\n{stored.path.name} {stored.path.stat().st_size}\n".encode())
        digest.update(stored.header)
        with stored.path.open("rb") as opened:
            for start, end in sorted(stored.spans):
                for at in (start, (start + end) // 2, max(start, end - SAMPLE_BYTES)):
                    opened.seek(at)
                    digest.update(opened.read(min(SAMPLE_BYTES, end - at)))
    digest.update(f"\n{computation}".encode())
    return digest.hexdigest()
