"""Models of real shapes with random weights, and a tokenizer that knows a little text, made on the spot."""

import importlib
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VOCABULARY = 16_000
MAX_CHARACTERS = 12_000_000
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "smol135": ("LlamaConfig", {
        "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "max_position_embeddings": 8192,
        "rope_theta": 100_000.0, "rms_norm_eps": 1e-5,
    }),
    "qwen06": ("Qwen3Config", {
        "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40_960,
        "rope_theta": 1_000_000.0, "rms_norm_eps": 1e-6,
    }),
}  # fmt: skip
"""SmolLM2-135M and Qwen3-0.6B: transformers' configuration class and what they set in it."""


def make(name: str, folder: Path) -> None:
    """Write a model of a shape into a folder, with a tokenizer; does nothing where it is already."""
    if (folder / "config.json").exists():
        return
    torch, transformers = (importlib.import_module(each) for each in ("torch", "transformers"))
    kind, shape = SHAPES[name]
    torch.manual_seed(0)
    ends = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0}
    config = getattr(transformers, kind)(**shape, **ends, tie_word_embeddings=True)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for each, value in ends.items():
        setattr(model.generation_config, each, value)
    _tokenizer().save_pretrained(folder)
    model.save_pretrained(folder)


def _tokenizer() -> Any:
    tokenizers, transformers = (importlib.import_module(each) for each in ("tokenizers", "transformers"))
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train_from_iterator(_texts(), trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|endoftext|>")


def _texts() -> Iterator[str]:
    """Sources of Python's own library: text that is on every machine."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    random.Random(0).shuffle(files)
    left = MAX_CHARACTERS
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        left -= len(text)
        if left < 0:
            return
        yield text
