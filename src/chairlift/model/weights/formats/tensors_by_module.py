"""tensors_by_module: tensors of a quantized folder by module, for formats that store a weight in several tensors."""

from collections import defaultdict
from pathlib import Path

from chairlift.model.weights.formats.safetensors import stored_weights
from chairlift.model.weights.stored_weight import StoredWeight, stored_twice

ModuleTensors = dict[str, StoredWeight]
"""Last part of a tensor's name, such as "qweight" or "scales" -> the tensor; dense() returns integers as they are."""


def tensors_by_module(folder: Path, architecture: str) -> dict[str, ModuleTensors]:
    """Return the tensors of each module by its canonical name, such as model.layers.0.mlp.up_proj.

    Raises ModelError as the format safetensors does, and for two tensors of one name.
    """
    modules: dict[str, ModuleTensors] = defaultdict(dict)
    for name, tensor in stored_weights(folder, architecture):
        module, _, kind = name.rpartition(".")
        if (other := modules[module].get(kind)) is not None:
            raise stored_twice(name, other, tensor)
        modules[module][kind] = tensor
    return dict(modules)
