"""Conversations: what the embedded model says, word for word, in float32, turn by turn, alone and all at once."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chairlift import LLM, SamplingParams, demo
from chairlift.llm.builtin_models import DEMO

TALKS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "conversations.json").read_text(encoding="utf-8"))
"""Each has `messages`, with the assistant's as they must come out, and may have `tools`."""


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(DEMO, dtype="float32", num_blocks=900) as made:
        yield made


def turns(talk: dict[str, Any]) -> Iterator[tuple[list[dict[str, Any]], str]]:
    """Yield what the model reads before each of its messages, and the message."""
    for place, message in enumerate(talk["messages"]):
        if message["role"] == "assistant":
            yield talk["messages"][:place], message["content"]


def test_there_are_a_dozen_of_all_sorts() -> None:
    assert len(TALKS) >= 12
    assert any("tools" in talk for talk in TALKS) and any(len(list(turns(talk))) > 2 for talk in TALKS)


@pytest.mark.share(2)
@pytest.mark.parametrize("talk", TALKS, ids=lambda talk: str(talk["messages"][0]["content"])[:30])
def test_a_conversation_goes_word_for_word(llm: LLM, talk: dict[str, Any]) -> None:
    for before, expected in turns(talk):
        (result,) = llm.chat(
            before, SamplingParams(max_tokens=200, temperature=0.0), tools=talk.get("tools"), use_tqdm=False
        )
        answer = result.outputs[0]
        assert (answer.text, str(answer.finish_reason)) == (expected, "stop")


def test_they_go_the_same_way_all_at_once(llm: LLM) -> None:
    asked = [(before, talk.get("tools"), said) for talk in TALKS if "tools" not in talk for before, said in turns(talk)]
    results = llm.chat(
        [before for before, _, _ in asked], SamplingParams(max_tokens=200, temperature=0.0), use_tqdm=False
    )
    assert [result.outputs[0].text for result in results] == [said for _, _, said in asked]


def test_the_tokenizer_of_transformers_reads_its_folder_the_same_way() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(demo.FOLDER)
    from chairlift.text.chat_template import ChatTemplate
    from chairlift.text.tokenizer import HFTokenizer

    ours = HFTokenizer.load(demo.FOLDER)
    template = ChatTemplate.load(demo.FOLDER, ours)
    for talk in TALKS:
        rendered = template.render(talk["messages"], tools=talk.get("tools"))
        assert rendered.text == theirs.apply_chat_template(
            talk["messages"], tools=talk.get("tools"), tokenize=False, add_generation_prompt=True
        )
        assert list(ours.encode_chat(rendered)) == theirs(rendered.text, add_special_tokens=False)["input_ids"]


@pytest.mark.full
def test_transformers_says_the_same() -> None:
    """Tokens of generate() in float64 are the engine's: the model is an ordinary one."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(demo.FOLDER, dtype=torch.float64)
    with LLM(DEMO, dtype="float64", num_blocks=200) as llm:
        for talk in TALKS[:4]:
            before, _ = next(turns(talk))
            (result,) = llm.chat(
                before, SamplingParams(max_tokens=60, temperature=0.0), tools=talk.get("tools"), use_tqdm=False
            )
            prompt = torch.tensor([result.prompt_token_ids])
            theirs = model.generate(prompt, do_sample=False, max_new_tokens=60, attention_mask=torch.ones_like(prompt))
            assert theirs[0, prompt.shape[1] :].tolist() == list(result.outputs[0].token_ids)
