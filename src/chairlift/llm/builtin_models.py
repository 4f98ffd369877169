"""DEMO and RANDOM: the names of built-in models; every other model name is a folder or a hub id."""

import logging
from pathlib import Path

from chairlift import demo
from chairlift.core.errors import ModelError

log = logging.getLogger(__name__)

DEMO = "chairlift:demo"
"""The embedded demo model, also the default model."""

RANDOM = "chairlift:random"
"""A tiny byte-level Llama with random weights, for tests and benchmarks of the engine alone."""


def is_demo(model: str | Path | None) -> bool:
    """Return whether a name means the embedded demo model."""
    return model is None or str(model) == DEMO


def embedded_folder(model: str | Path | None) -> Path | None:
    """Return the folder of the embedded demo model for its name; None for any other name."""
    return demo.FOLDER if is_demo(model) else None


def no_model_given() -> str:
    """Return the message for a run without a model name. Raises ModelError for a damaged demo model."""
    try:
        millions = demo.parameters() / 1e6
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"the embedded demo model is damaged ({error}); install Chairlift again") from error
    return (
        f"no model given: the embedded demo model ({millions:.1f} million parameters, a toy; "
        "name a Hugging Face folder or id for a real one)"
    )


def warn_no_model() -> None:
    """Log that no model was given; without any configuration Python shows warnings on standard error."""
    log.warning("%s", no_model_given())
