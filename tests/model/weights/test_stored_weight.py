"""by_name, damaged, stored_twice: the errors name the tensors and their files."""

from pathlib import Path

import pytest

from chairlift.core.errors import ModelError
from chairlift.model.weights.formats.safetensors import SafetensorsWeight
from chairlift.model.weights.stored_weight import by_name, damaged, stored_twice


def test_both_places_are_named() -> None:
    one, other = (SafetensorsWeight(Path(f"folder/{name}.safetensors"), name, (2,), "F32") for name in "ab")
    assert stored_twice("model.x", one, other).message == (
        "tensor model.x is stored twice: in a.safetensors (a) and b.safetensors (b)"
    )


def test_a_damaged_tensor_is_named_with_its_file() -> None:
    error = damaged(SafetensorsWeight(Path("folder/a.safetensors"), "x", (2,), "F32"), "has no numbers")
    assert error.message == "tensor x in folder/a.safetensors has no numbers"
    assert error.details == {"file": "folder/a.safetensors", "tensor": "x"}


def test_a_name_counts_once() -> None:
    one, other = (SafetensorsWeight(Path("folder/a.safetensors"), name, (2,), "F32") for name in "xy")
    assert by_name([("x", one), ("y", other)]) == {"x": one, "y": other}
    for again in (one, other):
        with pytest.raises(ModelError, match=r"tensor x is stored twice: in a\.safetensors \(x\) and a"):
            by_name([("x", one), ("y", other), ("x", again)])
