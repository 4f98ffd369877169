"""load_pretrained, make_without_weights: a model folder as a module of transformers, with weights or without.

Only code of transformers itself runs, never code in the folder. Any exception of it becomes a ModelError.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.attention.registry import backend_factory
from chairlift.model.config.model_folder import read_json
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.config.transformers_config import TransformersConfig, needs_own_code
from chairlift.model.device.dtypes import resolve_dtype, torch_dtype
from chairlift.model.weights.checkpoint import EMBEDDING, Checkpoint
from chairlift.model.weights.formats.registry import is_safetensors


def weights_dtype(folder: Path, shape: TransformersConfig, option: str) -> str:
    """Return the dtype to load the weights of a folder in, by the option `dtype`. Raises ModelError."""
    checkpoint = Checkpoint.open(folder, shape.architecture)
    checkpoint.check_not_quantized()
    return resolve_dtype(option, shape.dtype or checkpoint.largest_dtype())


def load_pretrained(folder: Path, shape: TransformersConfig, config: RunnerConfig, device: torch.device) -> Any:
    """Load the decoder of a folder to a device, in eval mode with eager attention, in the dtype of the shape.

    Raises ModelError that names the folder or the tensor, UnsupportedArchitecture for code in the folder, and
    ConfigError, before the weights are read, for an attention backend that cannot run.
    """
    import transformers
    from transformers.utils import logging

    classes: Any = transformers  # its types are incomplete
    backend_factory(config.attention_backend, str(device), str(shape.dtype))
    dtype = torch_dtype(shape.dtype)
    progress: Any = logging
    progress.disable_progress_bar()
    own_config = _own_config(folder, shape.architecture)
    model_class: Any = classes.AutoModelForCausalLM
    source: Path | None = folder
    weights: dict[str, Tensor] | None = None
    if not is_safetensors(folder):
        model_class, source = model_class._model_mapping[type(own_config)], None
        weights = _dense_weights(folder, shape, dtype)
        for each in (own_config, own_config.get_text_config()):  # transformers would expect its own kernels' tensors
            vars(each).pop("quantization_config", None)
    try:
        model, information = model_class.from_pretrained(
            source, state_dict=weights, use_safetensors=True, config=own_config, dtype=dtype,
            attn_implementation="eager", local_files_only=True, trust_remote_code=False, output_loading_info=True,
            ignore_mismatched_sizes=True,
            generation_config=classes.GenerationConfig(),  # the folder's, which may be broken, is not read
        )  # fmt: skip
    except Exception as error:
        raise _cannot_load(folder, error) from error
    _check_tensors(folder, shape.architecture, information)
    return model.eval().requires_grad_(False).to(device)


def _dense_weights(folder: Path, shape: TransformersConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the numbers of weights in a format that transformers does not read. Raises ModelError."""
    checkpoint = Checkpoint.open(folder, shape.architecture)
    if EMBEDDING in checkpoint.tensors:  # others, such as GPT-NeoX, have an embedding of another name
        checkpoint.resolve_tied_embeddings(tied=True)
    # A tensor of this dtype may be mapped from its file, which must not stay mapped.
    return {name: checkpoint.read(name, dtype).to(dtype, copy=True) for name in checkpoint.tensors}


def _check_tensors(folder: Path, architecture: str, information: Mapping[str, Iterable[Any]]) -> None:
    """Raise ModelError for a tensor that is missing or has another shape; transformers logs surplus ones."""
    if missing := sorted(information["missing_keys"]):
        raise ModelError(
            f"{len(missing)} tensors of {architecture} are missing in {folder}, the first is {missing[0]}",
            file=str(folder), tensor=missing[0],
        )  # fmt: skip
    if mismatched := sorted(information["mismatched_keys"]):
        name, stored, required = mismatched[0]
        raise ModelError(
            f"tensor {name} in {folder} has shape {tuple(stored)}, config.json requires {tuple(required)}",
            file=str(folder), tensor=name,
        )  # fmt: skip


def make_without_weights(folder: Path, architecture: str) -> Any:
    """Make the decoder of a folder's config.json in bfloat16, in eval mode with eager attention.

    Raises ModelError that names the folder, and UnsupportedArchitecture for code in the folder.
    """
    import transformers

    classes: Any = transformers
    own_config = _own_config(folder, architecture)
    try:
        return classes.AutoModelForCausalLM.from_config(
            own_config, dtype=torch.bfloat16, attn_implementation="eager", trust_remote_code=False
        ).eval()
    except Exception as error:
        raise _cannot_load(folder, error) from error


def _own_config(folder: Path, architecture: str) -> Any:
    """Return transformers' config of a folder. Raises UnsupportedArchitecture for a class that is code in the folder.

    A model_type of transformers may have a class of another name in the folder. Where transformers has the class that
    computes this model_type under another name (InternLM3 is a Llama), the class has the config of another model_type.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        own_config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        mapping: Any = AutoModelForCausalLM
        computed_by = mapping._model_mapping.get(type(own_config), None)
    except Exception as error:
        raise _cannot_load(folder, error) from error
    own_code = read_json(folder / "config.json").get("auto_map")
    has_own_class = isinstance(own_code, dict) and "AutoModelForCausalLM" in own_code
    is_other = computed_by is not None and computed_by.__name__ != architecture
    if has_own_class and is_other and computed_by.config_class is type(own_config):
        raise needs_own_code(architecture)
    return own_config


def _cannot_load(folder: Path, error: Exception) -> ModelError:
    return ModelError(f"transformers cannot load {folder}: {error}", file=str(folder))
