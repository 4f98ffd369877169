"""unsupported_architecture, architecture_names: what config.json names, and the error for others. Imports no torch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chairlift.core.errors import UnsupportedArchitecture

ENCODER_TASKS = (
    "Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification", "ForTokenClassification",
    "ForQuestionAnswering", "ForMultipleChoice", "ForNextSentencePrediction", "ForRewardModel",
)  # fmt: skip
"""Ends of the names of architectures without a language model head for the next token."""

OTHER_INPUTS = ("vision_config", "audio_config", "image_token_id", "image_token_index", "audio_token_index")
"""Fields of config.json that only models with images, video or audio have."""

MULTIMODAL_NAMES = ("VL", "Vision", "Llava", "Audio", "Speech", "Whisper", "Omni")


def unsupported_architecture(content: Mapping[str, Any], supported: Iterable[str]) -> UnsupportedArchitecture:
    """Return the error for a config.json whose `architectures` are not supported."""
    names = architecture_names(content)
    what = f"config.json names architecture {', '.join(names)}" if names else "config.json names no architecture"
    remedy = "use a model of a supported architecture; docs/add-a-model.md explains how to add one"
    has_other_name = any(word in name for name in names for word in MULTIMODAL_NAMES)
    if has_other_name or any(field in content for field in OTHER_INPUTS):
        what += ", which also takes images or audio; only models of text are supported"
        remedy = "use the text model of the same release"
        return UnsupportedArchitecture(f"{what}; {remedy}", remedy=remedy)
    if content.get("is_encoder_decoder") is True:
        what += ", an encoder-decoder; only models that predict the next token are supported"
    elif names and all(name.endswith(ENCODER_TASKS) for name in names):
        what += ", which has no language model head; it yields embeddings or classes instead of text"
    else:
        return UnsupportedArchitecture(f"{what}; supported are {', '.join(supported)}", remedy=remedy)
    remedy = "use a model whose architecture ends in ForCausalLM"
    return UnsupportedArchitecture(f"{what}; {remedy}", remedy=remedy)


def architecture_names(content: Mapping[str, Any]) -> Sequence[str]:
    """Return the texts in `architectures` of config.json."""
    names = content.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
