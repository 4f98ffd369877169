"""ARCHITECTURES: every architecture that a config may name, and what an entry must have."""

import pytest
import transformers

from chairlift.model.config.architectures.registry import ARCHITECTURES


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_entry_names_a_class_of_transformers_and_its_gguf_files_name_the_entry(name: str) -> None:
    assert hasattr(transformers, name)
    entry = ARCHITECTURES[name]
    assert name in entry.names
    assert entry.gguf is None or entry.gguf.architecture in entry.names
