"""Naming: the names of models that come with Chairlift; every other name is a folder or a hub id."""

import logging
from pathlib import Path

from chairlift import demo
from chairlift.core.errors import ModelError

log = logging.getLogger(__name__)

DEMO = "chairlift:demo"
"""The embedded demo model, also where no model is named."""

RANDOM = "chairlift:random"
"""A tiny Llama over bytes with random weights: what tests and measurements of the engine alone run on."""


def is_demo(model: str | Path | None) -> bool:
    """Tell whether a name means the embedded demo model."""
    return model is None or str(model) == DEMO


def embedded_folder(model: str | Path | None) -> Path | None:
    """Return the folder of the embedded demo model where a name means it; None for any other name."""
    return demo.FOLDER if is_demo(model) else None


def no_model_given() -> str:
    """Return the sentence for whoever named no model. Raises ModelError where the embedded one is damaged."""
    try:
        millions = demo.parameters() / 1e6
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"the embedded demo model is damaged ({error}); install Chairlift again") from error
    return (
        f"no model given: the embedded demo model ({millions:.1f} million parameters, a toy; "
        "name a Hugging Face folder or id for a real one)"
    )


def tell_no_model() -> None:
    """Say it in the log: without any configuration Python shows warnings on standard error."""
    log.warning("%s", no_model_given())
