"""BlockRows: the shape of a matrix by its bytes and by the order of its rows."""

import numpy as np
import pytest

from chairlift.model.config.gguf_types import GGML_TYPES, GGMLType
from chairlift.model.kernels.block_rows import BlockRows


@pytest.mark.parametrize(
    "kind", [kind for kind in GGML_TYPES.values() if kind.block_size > 1], ids=lambda kind: kind.name
)
def test_the_shape_is_that_of_the_numbers(kind: GGMLType) -> None:
    rows = np.zeros((7, kind.row_bytes(768)), np.uint8)
    assert BlockRows(kind, rows).shape == (7, 768)
    assert BlockRows(kind, rows, np.arange(3, dtype=np.int32)).shape == (3, 768)
