"""Metadata of small GGUF tokenizers: byte-level BPE, and SentencePiece with scores."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from chairlift.text.gguf_tokenizer import template_files, tokenizer_files
from chairlift.text.tokenizer import HFTokenizer
from support_text import CORPUS, byte_level

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
KEY = "tokenizer.ggml."

STRINGS = (
    "", " ", "Hello, world!", " leading space", "two  spaces   three", "trailing \n", "\n\n\n", "\r\n \r\n x",
    "tab\tand\nline", "I'm you're WE'VE they'll he'd 'S x's", "1234567890 and 3.14159, 2024-11-28", "12½3456 x² ٣٤٥ Ⅻ",
    "def f(x):\n    return x ** 2  # ok\n",
    "naïve café déjà — “quoted”", "e\u0301 a\u030a n\u0303o", "你好，世界ひらがなカタカナ12한국어",
    "Привет, мир", "😀👩\u200d👩\u200d👧 🇫🇷", "CamelCaseHTTPServer snake_case kebab-case",
    "a/b//c/\n/", "\u00a0no-break\u200bzero", "\x00\x7f\ufffd", "हिन्दी ภาษาไทย", "Ünïcödé ſ ǅ",
    "▁▁ ▁x", "<0x0A> <s> </s>",
    "    deep\n\t\tindent\n        more", "$100 + 5% = ~€3|^`", "a" * 50 + " " * 20 + "b",
)  # fmt: skip


@cache
def _trained_bytes() -> tuple[tuple[str, ...], tuple[str, ...]]:
    model = json.loads(byte_level([], [], 700).to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tuple(tokens), tuple(" ".join(pair) for pair in model["merges"])


def bpe_metadata(pre: str | None = "llama-bpe", /, **changes: Any) -> dict[str, Any]:
    """Return a byte-level BPE of 256 bytes, some merges, `<bos>`, `<eos>`, `<pad>`, `<think>`; keywords change keys."""
    tokens, merges = _trained_bytes()
    count = len(tokens)
    metadata: dict[str, Any] = {
        KEY + "model": "gpt2", KEY + "pre": pre, KEY + "tokens": [*tokens, "<bos>", "<eos>", "<pad>", "<think>"],
        KEY + "token_type": [NORMAL] * count + [CONTROL, CONTROL, CONTROL, USER_DEFINED], KEY + "merges": list(merges),
        KEY + "bos_token_id": count, KEY + "eos_token_id": count + 1, KEY + "padding_token_id": count + 2,
    }  # fmt: skip
    metadata |= {KEY + name: value for name, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


@cache
def _trained_pieces() -> tuple[str, ...]:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.train_from_iterator(CORPUS * 3, trainers.BpeTrainer(vocab_size=500, show_progress=False))
    vocabulary = backend.get_vocab()
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    merged = [piece for piece in pieces if len(piece) > 1]
    return (*merged, *(piece for piece in pieces if len(piece) == 1))


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """Return a vocabulary in Llama 2's order: unk, bos, eos, bytes, merged pieces by score, characters; then <turn>."""
    pieces = _trained_pieces()
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "<turn>"]
    metadata: dict[str, Any] = {
        "general.architecture": "llama", KEY + "model": "llama", KEY + "pre": "default", KEY + "tokens": tokens,
        KEY + "scores": [0.0] * 259 + [-float(rank) for rank in range(len(pieces))] + [-1000.0],
        KEY + "token_type": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces) + [USER_DEFINED],
        KEY + "bos_token_id": 1, KEY + "eos_token_id": 2, KEY + "unknown_token_id": 0,
    }  # fmt: skip
    metadata |= {name if "." in name else KEY + name: value for name, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def load(folder: Path, metadata: dict[str, Any]) -> HFTokenizer:
    """Write the files of the metadata into a folder, and read them as a model folder."""
    for name, text in (tokenizer_files(metadata) | template_files(metadata)).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return HFTokenizer.load(folder)


def backend(metadata: dict[str, Any]) -> Backend:
    """Return the tokenizers library's tokenizer."""
    return Backend.from_str(tokenizer_files(metadata)["tokenizer.json"])
