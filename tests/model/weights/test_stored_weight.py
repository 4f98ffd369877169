"""stored_twice: the error names both places of a tensor."""

from pathlib import Path

from chairlift.model.weights.formats.safetensors import SafetensorsWeight
from chairlift.model.weights.stored_weight import stored_twice


def test_both_places_are_named() -> None:
    one, other = (SafetensorsWeight(Path(f"folder/{name}.safetensors"), name, (2,), "F32") for name in "ab")
    assert stored_twice("model.x", one, other).message == (
        "tensor model.x is stored twice: in a.safetensors (a) and b.safetensors (b)"
    )
