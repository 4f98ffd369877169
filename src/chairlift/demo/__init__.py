"""The embedded demo model: a small Llama for when no model is named. README.md beside this file is its model card.

How it was made is in the repository's tools/demo_model. Imports the standard library and nothing else.
"""

import json
import math
from pathlib import Path

FOLDER = Path(__file__).parent
"""A Hugging Face model folder."""

MAX_HEADER = 1 << 20
"""Bytes of the header of the weights that are read; a damaged file may claim any number."""


def parameters() -> int:
    """Count the parameters, from the header of the weights. Raises OSError or ValueError where there are none."""
    with (FOLDER / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(min(MAX_HEADER, int.from_bytes(file.read(8), "little"))))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
