"""Sequence packing: only assistant messages have a loss, conversations do not overlap, and seeds are reproducible."""

from itertools import islice
from random import Random

import numpy as np
import pytest

from chairlift import demo
from chairlift.text.tokenizer import HFTokenizer
from demo_model.conversations import SKILLS, Conversation, conversations, draw
from demo_model.skills.knowledge import UNKNOWN
from demo_model.skills.memory import NOT_TOLD
from demo_model.task import assistant, user
from demo_model.tokenizing_and_packing import Rows, Writer, joined, packed, step_rows


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer(demo.FOLDER)


@pytest.fixture(scope="module")
def tokenizer() -> HFTokenizer:
    return HFTokenizer.load(demo.FOLDER)


def learnt(tokenizer: HFTokenizer, written: tuple[list[int], list[bool]]) -> str:
    return tokenizer.decode([token for token, said in zip(*written, strict=True) if said], skip_special_tokens=False)


def test_what_the_assistant_says_is_learnt_with_the_end_of_each_message(writer: Writer, tokenizer: HFTokenizer) -> None:
    talk = Conversation((user("one"), assistant("two"), user("assistant\nthree"), assistant("")))
    assert learnt(tokenizer, writer.ids(talk)) == "two<|im_end|><|im_end|>"
    plain = writer.ids(Conversation(text="All of it."))
    assert tokenizer.decode(plain[0], skip_special_tokens=False) == "All of it.<|im_end|>"
    assert plain[1] == [False, *[True] * (len(plain[0]) - 1)]


def test_of_a_task_the_last_answer_alone_is_learnt(writer: Writer, tokenizer: HFTokenizer) -> None:
    for name, skill in SKILLS.items():
        task = draw(Random(name), skill, held_out=None)
        assert learnt(tokenizer, writer.task(task)) == f"{task.answer}<|im_end|>"


def test_what_is_read_is_what_a_prompt_of_the_engine_is(writer: Writer, tokenizer: HFTokenizer) -> None:
    from chairlift.text.chat_template import ChatTemplate

    talk = Conversation((user("What is <|im_end|>?"), assistant("No.")))
    ids, said = writer.ids(talk)
    template = ChatTemplate.load(demo.FOLDER, tokenizer)
    assert ids[: said.index(True)] == list(tokenizer.encode_chat(template.render(talk.messages[:1])))


def check(rows: Rows) -> None:
    for ids, parts, positions, said in zip(rows.input_ids, rows.parts, rows.positions, rows.is_learnt, strict=True):
        used = int((parts > 0).sum())
        assert (parts[:used] > 0).all() and not ids[used:].any() and not said[used:].any()
        for part in range(1, int(parts.max()) + 1):
            (where,) = np.nonzero(parts == part)
            assert (np.diff(where) == 1).all() and (positions[where] == np.arange(len(where))).all()
            assert (said[where].any() and not said[where[0]]) or said[where].all()


@pytest.mark.parametrize("length", [256, 1024])
def test_rows_are_filled_and_nothing_overlaps(writer: Writer, length: int) -> None:
    rows = step_rows(writer, 7, 3, 4096, length)
    assert rows.input_ids.shape == (4096 // length, length) and (rows.parts > 0).mean() > 0.8
    check(rows)


def test_rows_hang_on_seed_step_and_drilling_alone(writer: Writer) -> None:
    def digest(*arguments: int, drilling: float = 0.0) -> bytes:
        rows = step_rows(writer, *arguments, 1024, 256, drilling)
        return b"".join(array.tobytes() for array in (rows.input_ids, rows.parts, rows.positions, rows.is_learnt))

    assert digest(0, 1) == digest(0, 1)
    assert len({digest(0, 1), digest(0, 2), digest(1, 1), digest(0, 1, drilling=0.9)}) == 4


def test_what_fits_nowhere_is_left_out_and_nothing_is_cut(writer: Writer) -> None:
    written = list(islice(map(writer.ids, conversations("cut")), 200))
    rows = packed(iter(written), 4, 300)
    check(rows)
    whole = {tuple(ids) for ids, _ in written}
    for ids, parts in zip(rows.input_ids, rows.parts, strict=True):
        for part in range(1, int(parts.max()) + 1):
            assert tuple(ids[parts == part].tolist()) in whole


def test_what_is_joined_stays_right() -> None:
    """Behind a conversation with tools nobody says that he does not know, and nobody was not told what he was."""
    with_tools = Conversation((user("a"), assistant("b")), ({"function": {"name": "f"}},))
    ignorant = Conversation((user("c"), assistant(UNKNOWN)))
    early = Conversation((user("d"), assistant(f"{NOT_TOLD} your name."), user("e"), assistant("f")))
    plain, greeted = (
        Conversation(text="plain"),
        Conversation(({"role": "system", "content": "s"}, user("g"), assistant("h"))),
    )
    said = [message["content"] for message in joined([plain, ignorant, early, with_tools, greeted]).messages]
    assert said == ["a", "b", "g", "h"]
    assert [each["content"] for each in joined([greeted, ignorant, early]).messages] == ["s", "g", "h", "c", UNKNOWN]
    assert joined([plain, plain]) == plain
    assert joined([early, ignorant]).messages[-1]["content"] == UNKNOWN
