"""parse_decoder_config, read_decoder_config: config.json of a supported architecture. Imports no torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.registry import ARCHITECTURES
from chairlift.model.config.config_reader import NO_TOKEN, ConfigReader
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.model_folder import read_json
from chairlift.model.config.quantized_checkpoint import check_quantization
from chairlift.model.config.unsupported_architecture import architecture_names, unsupported_architecture


def read_decoder_config(folder: Path) -> DecoderConfig:
    """Read config.json of a model folder. Raises ModelError, UnsupportedModel or UnsupportedArchitecture."""
    return parse_decoder_config(read_json(folder / "config.json"))


def parse_decoder_config(content: Mapping[str, Any]) -> DecoderConfig:
    """Turn the object in config.json into a DecoderConfig.

    Raises ModelError, UnsupportedModel or UnsupportedArchitecture.
    """
    name = next((each for each in architecture_names(content) if each in ARCHITECTURES), None)
    if name is None:
        raise unsupported_architecture(content, ARCHITECTURES)
    check_quantization(content)
    text = content.get("text_config") or {}
    if not isinstance(text, Mapping):
        raise ModelError(f"config.json: text_config must be an object, got {type(text).__name__}")
    check_quantization(text)
    architecture = ARCHITECTURES[name]
    return architecture.read_config(name, ConfigReader(_merged(content, text), architecture.defaults))


def _merged(content: Mapping[str, Any], text: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a text model, which a multimodal wrapper has in text_config.

    The wrapper's fields apply where text_config omits them (eos_token_id, torch_dtype); the wrapper decides the tie.
    """
    merged = {**content, **{name: value for name, value in text.items() if value is not None or name not in content}}
    if "tie_word_embeddings" in content:
        merged["tie_word_embeddings"] = content["tie_word_embeddings"]
    for name in ("eos_token_id", "bos_token_id"):
        if content.get(name) not in (None, NO_TOKEN, []):  # these name no token, and text_config may
            merged[name] = content[name]
    return merged
