"""tensors_by_module, module_weights: folders whose format stores the weight of a module in several tensors."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from chairlift.model.weights.formats.safetensors import stored_weights
from chairlift.model.weights.stored_weight import StoredWeight, by_name

ModuleTensors = dict[str, StoredWeight]
"""Last part of a tensor's name, such as "qweight" or "scales" -> the tensor; dense() returns integers as they are."""


def tensors_by_module(folder: Path, architecture: str) -> dict[str, ModuleTensors]:
    """Return the tensors of each module by its canonical name, such as model.layers.0.mlp.up_proj.

    Raises ModelError as the format safetensors does, and for two tensors of one name.
    """
    modules: dict[str, ModuleTensors] = defaultdict(dict)
    for name, tensor in by_name(stored_weights(folder, architecture)).items():
        module, _, kind = name.rpartition(".")
        modules[module][kind] = tensor
    return dict(modules)


def module_weights(
    folder: Path, architecture: str, make: Callable[[ModuleTensors], StoredWeight | None], kinds: Collection[str],
    ignored_kinds: Collection[str] = (),
) -> Iterator[tuple[str, StoredWeight]]:  # fmt: skip
    """Yield the weights of a folder by canonical name; all other tensors are as the format safetensors has them.

    Args:
        folder: the model folder.
        architecture: as for WeightFormat.
        make: makes the weight of a module; None for a module that is not quantized.
        kinds: last parts of the names of tensors that a weight is made of.
        ignored_kinds: last parts of the names of tensors that no module needs.

    Raises ModelError as tensors_by_module and `make` do.
    """
    for module, tensors in tensors_by_module(folder, architecture).items():
        prefix = f"{module}." if module else ""
        weight = make(tensors)
        if weight is not None:
            yield f"{prefix}weight", weight
        for kind, tensor in tensors.items():
            if kind not in ignored_kinds and (weight is None or kind not in kinds):
                yield f"{prefix}{kind}", tensor
