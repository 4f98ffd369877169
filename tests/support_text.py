"""Small real tokenizers in the styles of published models, saved as model folders."""

import atexit
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from chairlift.text.tokenizer import HFTokenizer

CORPUS = (
    "The lift never stops; at every step riders board the free chairs and leave at the top. ",
    "Nobody waits for the slowest rider, and nobody is left behind. Hello, hello world! It's 42 o'clock.\n",
    "user assistant system Die Gäste fahren hinauf, 中文 文字, смотри на гору. def f(x):\n    return x + 1\n",
)
# The pattern of Llama 3's and Qwen 2's pre-tokenizers.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
STYLES = ("qwen", "llama3", "llama2", "mistral", "gemma")


def byte_level(specials: list[str], added: list[str], vocab_size: int = 420) -> Tokenizer:
    """Train byte-level BPE like Llama 3 and Qwen; special tokens follow the model's vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added])
    return tokenizer


def sentence_piece(specials: list[str], style: str, vocab_size: int = 600) -> Tokenizer:
    """Train BPE with byte fallback and "▁" for a space, like SentencePiece.

    Special tokens and bytes come first.
    """
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer_output = Tokenizer(models.BPE())
    trainer_output.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer_output.train_from_iterator(
        CORPUS * 3, trainers.BpeTrainer(vocab_size=vocab_size - 256, show_progress=False)
    )
    model = json.loads(trainer_output.to_str())["model"]
    tokens = [*specials, *bytes_, *sorted(model["vocab"], key=model["vocab"].__getitem__)]
    tokens += ["▁"] if "▁" not in tokens else []
    merges = [(left, right) for left, right in model["merges"]]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    unknown_token = "<unk>"
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token=unknown_token, fuse_unk=True, byte_fallback=True))
    spaces = decoders.Replace("▁", " ")
    if style == "llama2":  # as converted in "legacy" mode: every stretch of text begins with a space
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    elif style == "mistral":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    steps = [spaces, decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps if style == "gemma" else [*steps, decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    return tokenizer


def template_of(tokenizer: Tokenizer, bos: str) -> processors.PostProcessor:
    """Return a post-processor that puts `bos` before every text."""
    token_id = tokenizer.token_to_id(bos)
    assert token_id is not None
    return processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, token_id)])


def build_tokenizer(style: str) -> tuple[Tokenizer, dict[str, Any]]:
    """Return the tokenizer and the configuration of one style."""
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if style == "qwen":
        tokenizer = byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<think>", "</think>"])
        token_fields = {
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "bos_token": None,
            "add_bos_token": False,
        }
    elif style == "llama3":
        names = ["begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id"]
        tokenizer = byte_level([f"<|{name}|>" for name in names], [])
        bytes_only = processors.ByteLevel(trim_offsets=False)
        tokenizer.post_processor = processors.Sequence([bytes_only, template_of(tokenizer, "<|begin_of_text|>")])
        token_fields = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    elif style == "gemma":
        turns = ["<start_of_turn>", "<end_of_turn>"]
        tokenizer = sentence_piece(["<pad>", "<eos>", "<bos>", "<unk>", *turns], style)
        tokenizer.post_processor = template_of(tokenizer, "<bos>")
        token_fields = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "add_bos_token": True}
    else:
        tokenizer = sentence_piece(["<unk>", "<s>", "</s>", *(["[INST]", "[/INST]"] * (style == "mistral"))], style)
        tokenizer.post_processor = template_of(tokenizer, "<s>")
        token_fields = {
            "bos_token": {"content": "<s>", "__type": "AddedToken"},
            "eos_token": "</s>",
            "unk_token": "<unk>",
        }
    return tokenizer, config | token_fields


def save_tokenizer(folder: Path, tokenizer: Tokenizer, config: Mapping[str, Any], template: object = None) -> Path:
    """Write tokenizer.json and tokenizer_config.json, with a chat template; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    extra = {} if template is None else {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, **extra}))
    return folder


@cache
def tokenizer_folder(style: str) -> Path:
    """Return a folder with the tokenizer of this style, built once in a process."""
    folder = mkdtemp(prefix=f"chairlift-{style}-")
    atexit.register(rmtree, folder, ignore_errors=True)
    return save_tokenizer(Path(folder), *build_tokenizer(style))


@cache
def tokenizer_of(style: str) -> HFTokenizer:
    """Return the loaded tokenizer of this style."""
    return HFTokenizer.load(tokenizer_folder(style))
