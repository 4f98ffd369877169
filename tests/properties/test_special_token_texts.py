"""Forced text with the name of an added token: a model of every kind of tokenizer writes exactly that text."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from chairlift import LLM, SamplingParams, StructuredOutput
from chairlift.core.errors import InvalidRequest
from support_models import save_tiny
from support_text import CORPUS, build_tokenizer, save_tokenizer

CALL = "<tool_call>"
ALPHABET = sorted({*"<>_|/[]", *map(chr, range(ord("a"), ord("z") + 1)), *"ENDINSTOKP"})


def byte_level_bpe() -> tuple[Tokenizer, str]:
    """Return byte-level BPE whose own merges make an added token, and go on from it."""
    tokenizer, config = build_tokenizer("qwen")
    text = json.loads(tokenizer.to_str())
    vocab, merges = text["model"]["vocab"], text["model"]["merges"]
    left = CALL[0]
    for right in (*CALL[1:], "s"):
        merges.append([left, right])
        left += right
        vocab.setdefault(left, len(vocab))
    for token in text["added_tokens"]:
        token["id"] += len(CALL) + 1
    text["added_tokens"].insert(0, {**text["added_tokens"][0], "content": CALL, "id": vocab[CALL], "special": False})
    for number, token in enumerate(text["added_tokens"][1:]):
        token["id"] = len(vocab) + number
    return Tokenizer.from_str(json.dumps(text)), config["eos_token"]


def sentence_piece_bpe() -> tuple[Tokenizer, str]:
    tokenizer, config = build_tokenizer("gemma")
    tokenizer.add_tokens([AddedToken(CALL, normalized=False)])
    return tokenizer, config["eos_token"]


def unigram() -> tuple[Tokenizer, str]:
    specials = ["<unk>", "</s>", CALL, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.UnigramTrainer(
        vocab_size=600, special_tokens=specials, unk_token="<unk>", initial_alphabet=ALPHABET, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    text = json.loads(tokenizer.to_str())
    text["model"]["byte_fallback"] = True
    text["added_tokens"] = [token for token in text["added_tokens"] if not token["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(text)), "</s>"


def word_piece() -> tuple[Tokenizer, str]:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=["[UNK]", "[SEP]", CALL], initial_alphabet=ALPHABET, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer, "[SEP]"


def generate(folder: Path, build: Callable[[], tuple[Tokenizer, str]], structures: list[dict[str, Any]]) -> list[Any]:
    """Generate one output for each structure with a tiny model of this tokenizer."""
    tokenizer, eos = build()
    size = tokenizer.get_vocab_size()
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, "eos_token": eos}
    path = save_tokenizer(save_tiny("llama", folder, vocab_size=-(-size // 8) * 8), tokenizer, config)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": tokenizer.token_to_id(eos)}))
    params = [
        SamplingParams(max_tokens=80, seed=1, structured=StructuredOutput(**structure)) for structure in structures
    ]
    with LLM(str(path), num_blocks=300) as llm:
        return llm.generate(["hello"] * len(params), params, use_tqdm=False)


@pytest.mark.full
@pytest.mark.parametrize("build", [byte_level_bpe, sentence_piece_bpe, unigram])
def test_forced_text_is_written_exactly(
    build: Callable[[], tuple[Tokenizer, str]], tmp_path: Path
) -> None:  # fmt: skip
    eos = build()[1]
    texts = [CALL, f"a{CALL}b", f"{CALL}s", "<think>x</think>", eos, f"{eos}{eos}"]
    structures = [
        *({"choice": [text]} for text in texts), *({"regex": re.escape(text)} for text in texts),
        *({"json_schema": {"const": text}} for text in texts),
    ]  # fmt: skip
    results = generate(tmp_path, build, [*structures, {"regex": f"<think>[a-z]{{3}}</think>|{CALL}"}])
    outputs = [result.error or result.outputs[0].text for result in results]
    assert outputs[:-1] == [*texts, *texts, *map(json.dumps, texts)]
    assert re.fullmatch(f"<think>[a-z]{{3}}</think>|{CALL}", outputs[-1])


def test_a_tokenizer_that_no_grammar_supports_is_400_without_its_internals(tmp_path: Path) -> None:
    [result] = generate(tmp_path, word_piece, [{"choice": [CALL]}])
    assert isinstance(result.error, InvalidRequest)
    assert result.error.message == (
        "structured: not possible with this model's tokenizer: can't determine decoder type"
    )
