"""model_shape: the size fields of a model's config.json, for a report; those of a GGUF file from its metadata."""

import json
from pathlib import Path
from typing import Any

from chairlift.llm.builtin_models import embedded_folder

SHAPE = (
    "architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "sliding_window", "tie_word_embeddings",
)  # fmt: skip


def model_shape(model: str | None) -> dict[str, Any] | None:
    """Return the size fields of a model's config.json, None without a local one. Raises as model_folder()."""
    folder = embedded_folder(model) or Path(str(model)).expanduser()
    if folder.is_file():
        from chairlift.llm.build import model_folder  # the interpreters of peers, which have no GGUF files, lack it

        folder = model_folder(model) or folder
    path = folder / "config.json"
    if not path.is_file():
        path = _in_hub_cache(str(model)) or path
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    config = {**config, **config["text_config"]} if isinstance(config.get("text_config"), dict) else config
    return {name: config[name] for name in SHAPE if name in config}


def _in_hub_cache(model: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return None
    return Path(path) if isinstance(path, str) else None
