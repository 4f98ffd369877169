"""Tokenizer: any text is restored, a word has the same tokens after most characters, and the chat template is exact."""

import json
from pathlib import Path
from random import Random

import pytest

from chairlift import demo
from chairlift.text.chat_template import ChatTemplate, RenderOptions
from chairlift.text.tokenizer import HFTokenizer
from demo_model import tokenizer_training
from demo_model.skills.tool_calls import tool
from demo_model.skills.word_tasks import any_word
from support_shares import FULL

SAMPLE = 3_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    tokenizer_training.save(tokenizer_training.train(1, SAMPLE), folder)
    return folder


def template_of(folder: Path) -> ChatTemplate:
    return ChatTemplate.load(folder, HFTokenizer.load(folder))


@pytest.mark.full
def test_the_same_seed_gives_the_same_files(made: Path, tmp_path: Path) -> None:
    tokenizer_training.save(tokenizer_training.train(1, SAMPLE), tmp_path)
    for file in made.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


@pytest.mark.full
def test_the_embedded_one_is_what_its_seed_gives(tmp_path: Path) -> None:
    assert FULL
    seed = json.loads((demo.FOLDER / "training.json").read_text())["seed"]
    tokenizer_training.save(tokenizer_training.train(seed), tmp_path)
    for file in tmp_path.iterdir():
        assert (demo.FOLDER / file.name).read_bytes() == file.read_bytes()


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "text", ["", " ", "a  b\n\n c", "中文 \U0001f6a0 é", '{"a": [1, 23]}', "x\r\ny\t z  ", "<tool_call>\n"]
)
def test_any_text_comes_back(made: Path, text: str) -> None:
    tokenizer = HFTokenizer.load(made)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and max(ids, default=0) < tokenizer_training.SIZE


def test_behind_every_sign_but_a_space_a_word_has_the_tokens_that_it_has_alone(made: Path) -> None:
    """Else a model that copies a word has to know many lists of tokens for it."""
    tokenizer, rng = HFTokenizer.load(made), Random(3)
    for _ in range(200):
        word = any_word(rng)
        alone = tokenizer.encode(word)
        for text in (f'{{"key": "{word}"}}', f"({word})", f"x:\n{word}", f"a-{word}"):
            within = tokenizer.encode(text)
            assert any(within[start : start + len(alone)] == alone for start in range(len(within)))


def test_digits_are_tokens_of_their_own(made: Path) -> None:
    assert len(HFTokenizer.load(made).encode("2468013579")) == 10


def test_the_template_writes_a_whole_conversation(made: Path) -> None:
    call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    messages = [
        {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "rain"},
        {"role": "assistant", "content": "The answer is: rain."}, {"role": "user", "content": "Thanks"},
    ]  # fmt: skip
    offered = [tool("get_weather", "The weather in a city", city="string"), tool("stop", "")]
    assert template_of(made).render(messages, tools=offered).text == (
        "<|im_start|>system\nBe kind.\nTools:\nget_weather(city: string): The weather in a city\nstop()<|im_end|>\n"
        "<|im_start|>user\nWeather?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nThe answer is: rain.<|im_end|>\n"
        "<|im_start|>user\nThanks<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_later_system_message_stays_where_it_is(made: Path) -> None:
    messages = [{"role": role, "content": role} for role in ("system", "user", "assistant", "system", "user")]
    assert template_of(made).render(messages, options=RenderOptions(add_generation_prompt=False)).text == "".join(
        f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages
    )


def test_the_template_does_with_what_clients_send(made: Path) -> None:
    """No content beside calls, arguments as text, several calls, parameters without a type, tools without any."""
    calls = [{"function": {"name": "f", "arguments": '{"x": 1}'}}, {"function": {"name": "g", "arguments": {}}}]
    odd = {"type": "function", "function": {"name": "g"}}
    untyped = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {}}}}}
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": calls}]
    said = template_of(made).render(messages, tools=[odd, untyped], options=RenderOptions(add_generation_prompt=False))
    assert said.text == (
        "<|im_start|>system\nTools:\ng()\nf(x: )<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call><|im_end|>\n'
    )
