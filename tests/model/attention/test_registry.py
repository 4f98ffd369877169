"""make_backend: imports known backends; the error for an unknown name lists them."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.attention.registry import BACKENDS, make_backend, resolve_backend_name
from chairlift.model.attention.torch_paged import TorchAttention


def test_the_reference_is_made_by_its_name() -> None:
    assert isinstance(make_backend("reference"), ReferenceAttention)


def test_auto_is_the_torch_backend() -> None:
    assert isinstance(make_backend("auto"), TorchAttention)
    assert (resolve_backend_name("auto"), resolve_backend_name("reference")) == ("torch", "reference")


def test_every_name_leads_to_a_class() -> None:
    for name in BACKENDS:
        make_backend(name)


def test_an_unknown_name_ends_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'flash' is unknown; known are auto, torch, reference"):
        make_backend("flash")
