"""make_model(): writes a model folder with a real model's shape, random weights and a small new tokenizer."""

import importlib
import json
import random
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TOKENIZER_VOCAB_SIZE = 16_000
MAX_TRAINING_CHARS = 12_000_000
"""Characters of text that the tokenizer is trained on."""

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
    "gpt2": ("GPT2Config", {"vocab_size": 50_257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}),
    "gemma2": ("Gemma2Config", {
        "vocab_size": 256_000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
        "sliding_window": 4096, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    }),
    "qwen35_08": ("Qwen3_5TextConfig", {
        "vocab_size": 248_320, "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 262_144,
        "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "layer_types": [*3 * ["linear_attention"], "full_attention"] * 6,
        "rope_parameters": {"rope_theta": 10_000_000.0, "rope_type": "default", "partial_rotary_factor": 0.25},
    }),
    "lfm2_350": ("Lfm2Config", {
        "vocab_size": 65_536, "hidden_size": 1024, "intermediate_size": 6656, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 128_000,
        "layer_types": ["full_attention" if i in (2, 5, 8, 10, 12, 14) else "conv" for i in range(16)],
    }),
    "granite4_350": ("GraniteMoeHybridConfig", {
        "vocab_size": 100_352, "hidden_size": 768, "intermediate_size": 2048, "shared_intermediate_size": 2048,
        "num_hidden_layers": 32, "num_attention_heads": 12, "num_key_value_heads": 4,
        "max_position_embeddings": 32_768, "num_local_experts": 0, "num_experts_per_tok": 0, "rms_norm_eps": 1e-5,
        "position_embedding_type": "nope", "mamba_n_heads": 48, "mamba_d_head": 32, "mamba_d_state": 128,
        "layer_types": ["attention" if i in (10, 13, 17, 27) else "mamba" for i in range(32)],
        "embedding_multiplier": 12.0, "residual_multiplier": 0.246, "attention_multiplier": 0.015625,
        "logits_scaling": 3.0,
    }),
    "gemma4_e2b": ("Gemma4TextConfig", {
        "vocab_size": 262_144, "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35,
        "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512,
        "max_position_embeddings": 131_072, "sliding_window": 512, "num_kv_shared_layers": 20,
        "use_double_wide_mlp": True, "final_logit_softcapping": 30.0,
        "layer_types": [*4 * ["sliding_attention"], "full_attention"] * 7,
    }),
    "qwen3_30b_layers": ("Qwen3MoeConfig", {
        "vocab_size": 32_000, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 4,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 40_960,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True,
        "rope_theta": 1_000_000.0,
    }),
}  # fmt: skip
"""Shapes of published models: transformers' configuration class and its arguments.

SmolLM2-135M, Qwen3-0.6B, GPT-2, Gemma 2 2B, Qwen3.5-0.8B, LFM2-350M, Granite 4.0 H 350M, Gemma 4 E2B (text), and four
layers of Qwen3-30B-A3B with a small vocabulary.
"""


def make_model(name: str, folder: Path) -> None:
    """Write a model of a named shape and a tokenizer into a folder, unless the folder has a model."""
    if (folder / "config.json").exists():
        return
    torch, transformers = (importlib.import_module(each) for each in ("torch", "transformers"))
    config_class, shape = SHAPES[name]
    torch.manual_seed(0)
    special_ids = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0}
    config = getattr(transformers, config_class)(**shape, **special_ids, tie_word_embeddings=True)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for field, value in special_ids.items():
        setattr(model.generation_config, field, value)
    _train_tokenizer().save_pretrained(folder)
    model.save_pretrained(folder)
    if "layer_types" in shape:
        _write_layer_types(folder / "config.json", shape["layer_types"])


def _write_layer_types(config: Path, kinds: Sequence[str]) -> None:
    """Write the names that published files have: transformers 5 writes its own, which llama.cpp's converter ignores."""
    fields = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**fields, "layer_types": kinds}, indent=2) + "\n", encoding="utf-8")


def _train_tokenizer() -> Any:
    tokenizers, transformers = (importlib.import_module(each) for each in ("tokenizers", "transformers"))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=TOKENIZER_VOCAB_SIZE, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(_training_texts(), trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


def _training_texts() -> Iterator[str]:
    """Yield source files of Python's standard library, in random order: text that every machine has."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    random.Random(0).shuffle(files)
    num_left = MAX_TRAINING_CHARS
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        num_left -= len(text)
        if num_left < 0:
            return
        yield text
