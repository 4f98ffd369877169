"""ModelTokenizer: the methods of transformers' tokenizers, compared with those of transformers itself."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from chairlift import LLM, AsyncLLM
from chairlift.core.errors import InvalidRequest, ModelError
from chairlift.llm.vllm_compat.model_tokenizer import ModelTokenizer
from chairlift.text.chat_template import ChatTemplate
from support_services import fake_service
from support_text import HFTokenizer, build_tokenizer, save_tokenizer

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools[0].function.name }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if thinking %}<think>{% endif %}{% endif %}"
)
CHAT = [{"role": "user", "content": "Grüße 中"}]
TEXTS = ["", "hello", "Grüße, 中文 def f(x):\n  1", "a <|im_end|> b"]


@pytest.fixture(scope="module", params=["qwen", "llama2"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelTokenizer, Any]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    backend, config = build_tokenizer(request.param)
    save_tokenizer(folder, backend, config, template=TEMPLATE)
    tokenizer = HFTokenizer.load(folder)
    ours = ModelTokenizer(tokenizer, ChatTemplate.load(folder, tokenizer), "name")
    return ours, PreTrainedTokenizerFast.from_pretrained(folder)


def test_texts_and_ids_are_those_of_transformers(both: tuple[ModelTokenizer, Any]) -> None:
    ours, theirs = both
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
        ids = ours.encode(text)
        for skip in (False, True):
            expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(ids, skip_special_tokens=skip) == expected
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
        assert ours(text)["attention_mask"] == theirs(text)["attention_mask"]
        assert ours.tokenize(text) == theirs.tokenize(text)
    assert ours(TEXTS)["input_ids"] == theirs(TEXTS)["input_ids"]
    assert (
        ours.batch_decode([[5], [6, 7]])
        == [ours.decode([5]), ours.decode([6, 7])]
        == [ours.decode(5), ours.decode([6, 7])]
    )


def test_the_vocabulary_is_that_of_transformers(both: tuple[ModelTokenizer, Any]) -> None:
    ours, theirs = both
    assert ours.get_vocab() == theirs.get_vocab() and len(ours) == len(theirs) == ours.vocab_size
    tokens = ours.convert_ids_to_tokens([3, 4])
    assert tokens == theirs.convert_ids_to_tokens([3, 4]) and ours.convert_tokens_to_ids(tokens) == [3, 4]
    assert ours.convert_tokens_to_ids(tokens[0]) == 3
    assert ours.convert_tokens_to_ids("no such token") == theirs.convert_tokens_to_ids("no such token")
    for name in ("bos_token", "eos_token", "pad_token", "bos_token_id", "eos_token_id", "pad_token_id"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert set(theirs.all_special_tokens) <= set(ours.all_special_tokens)
    assert ours.convert_ids_to_tokens(ours.all_special_ids) == ours.all_special_tokens


@pytest.mark.parametrize(
    "options", [{}, {"add_generation_prompt": True}, {"add_generation_prompt": True, "thinking": 1}]
)
def test_a_chat_is_rendered_as_transformers_does(both: tuple[ModelTokenizer, Any], options: dict[str, Any]) -> None:
    ours, theirs = both
    text = theirs.apply_chat_template(CHAT, tokenize=False, **options)
    assert ours.apply_chat_template(CHAT, tokenize=False, **options) == text
    assert ours.apply_chat_template(CHAT, **options) == theirs.encode(text, add_special_tokens=False)
    assert ours.apply_chat_template([CHAT, CHAT], tokenize=False, **options) == [text, text]
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert ours.apply_chat_template(CHAT, tools, tokenize=False) == theirs.apply_chat_template(
        CHAT, tools, tokenize=False
    )
    assert ours.chat_template == TEMPLATE


def test_the_last_message_is_continued(both: tuple[ModelTokenizer, Any]) -> None:
    ours, theirs = both
    messages, options = [*CHAT, {"role": "assistant", "content": "It is"}], {"continue_final_message": True}
    expected = theirs.apply_chat_template(messages, tokenize=False, **options)
    assert expected.endswith("It is") and ours.apply_chat_template(messages, tokenize=False, **options) == expected
    assert ours.apply_chat_template(messages, **options) == theirs.encode(expected, add_special_tokens=False)


@pytest.mark.parametrize("name", ["return_tensors", "chat_template"])
def test_what_is_not_supported_is_refused_by_name(both: tuple[ModelTokenizer, Any], name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"apply_chat_template does not support {name}"):
        both[0].apply_chat_template(CHAT, **{name: "x"})


def test_an_llm_returns_its_tokenizer() -> None:
    service = fake_service()
    tokenizer = LLM.from_service(service).get_tokenizer()
    assert tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True) == "user=Grüße 中;a="
    assert asyncio.run(AsyncLLM.from_service(service).get_tokenizer()).encode("ab") == [97, 98]
    assert tokenizer.name_or_path == "fake"
    service.client.close()


def test_a_model_without_a_tokenizer_says_so() -> None:
    service = fake_service(with_tokenizer=False)
    with pytest.raises(ModelError, match=r"fake has no tokenizer\.json"):
        LLM.from_service(service).get_tokenizer()
    service.client.close()
