"""read_config: reads config.json for the implementation of the option `model_impl`. Imports no torch."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from chairlift.core.errors import UnsupportedArchitecture
from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.config.architectures.registry import ARCHITECTURES
from chairlift.model.config.model_config import ModelConfig
from chairlift.model.config.model_folder import read_json
from chairlift.model.config.transformers_config import parse_transformers_config
from chairlift.model.config.unsupported_architecture import architecture_names

AUTO, NATIVE, TRANSFORMERS = "auto", "native", "transformers"
"""Values of the option `model_impl`."""


def read_config(folder: Path, model_impl: str = AUTO) -> ModelConfig:
    """Read config.json of a model folder for the implementation of the option `model_impl`.

    Raises ModelError, UnsupportedModel or UnsupportedArchitecture.
    """
    return parse_config(read_json(folder / "config.json"), model_impl)


def parse_config(content: Mapping[str, Any], model_impl: str = AUTO) -> ModelConfig:
    """Turn the object in config.json into the config of the implementation that runs the model.

    "auto" is Chairlift's own where it has the architecture and its features, else transformers.
    Raises ModelError, UnsupportedModel or UnsupportedArchitecture.
    """
    is_known = any(name in ARCHITECTURES for name in architecture_names(content))
    if model_impl == NATIVE or (model_impl == AUTO and is_known):
        try:
            return parse_decoder_config(content)
        except UnsupportedArchitecture as error:
            if model_impl == NATIVE or not is_known or find_spec("transformers") is None:
                raise
            try:
                return parse_transformers_config(content)
            except UnsupportedArchitecture:
                raise error from None  # neither runs it; the first reason is that of its own architecture
    return parse_transformers_config(content)
