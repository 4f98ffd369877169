"""GGUFArchitecture's defaults: the file has the rows, columns and fields that all architectures have."""

from chairlift.model.config.architectures.architecture import (
    FileOrder,
    GGUFContents,
    no_more_fields,
    no_source,
    same_order,
)
from chairlift.model.config.gguf_metadata_reader import GGUFMetadataReader
from support_architectures import config_of


def test_an_architecture_without_hooks_changes_nothing() -> None:
    assert same_order({"num_attention_heads": 4}, "model.layers.0.self_attn.q_proj.weight") == FileOrder(None, None)
    read = GGUFMetadataReader({}, "llama", "a.gguf")
    assert no_more_fields(GGUFContents(read, {"token_embd.weight": (8, 4)}, {"vocab_size": 8})) == {}
    assert no_source(config_of("llama"), "model.layers.0.self_attn.q_proj.weight") is None
