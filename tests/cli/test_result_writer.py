"""OrderedWriter, as_json: lines in the order of the items, none lost after a gap; all fields of a result."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.cli.prompt_items import PromptItem
from chairlift.cli.result_writer import LineFile, OrderedWriter, as_json
from chairlift.core.engine_output import FinishReason, TokenLogprob, Usage
from chairlift.core.errors import NonFiniteLogits
from chairlift.core.file_writes import FileNotWritten
from chairlift.llm.outputs import CompletionOutput, RequestOutput
from support_file_sizes import file_size_limit


def result(choice: CompletionOutput, error: NonFiniteLogits | None = None) -> RequestOutput:
    return RequestOutput("r", None, [1, 2], [choice], Usage(2, 1, 0), error=error)


def test_a_result_has_all_fields_of_one_request() -> None:
    item = PromptItem(item_id="mine", input=("prompt", [1, 2]))
    top = ((5, -0.5), (6, -1.5))
    choice = CompletionOutput(0, "中", [5], [TokenLogprob(5, -0.5, top)], FinishReason.STOP, "x", 7)
    line = as_json(item, result(choice))
    assert "\n" not in line and "中" in line
    assert json.loads(line) == {
        "id": "mine", "prompt": [1, 2], "text": "中", "token_ids": [5], "finish_reason": "stop", "stop_reason": "x",
        "usage": {"prompt_tokens": 2, "completion_tokens": 1, "cached_tokens": 0}, "seed": 7, "error": None,
        "logprobs": [{"token_id": 5, "logprob": -0.5, "top": [[5, -0.5], [6, -1.5]]}],
    }  # fmt: skip


def test_half_of_a_surrogate_pair_in_an_id_is_written_as_an_escape(tmp_path: Path) -> None:
    item = PromptItem(item_id="\ud800中", input=("prompt", [1, 2]))
    with (tmp_path / "out.jsonl").open("w", encoding="utf-8") as file:
        file.write(as_json(item, result(CompletionOutput())))
    assert json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8"))["id"] == item.item_id


def test_an_error_has_its_code_and_message() -> None:
    item = PromptItem(item_id=1, input=("messages", [{"role": "user", "content": "x"}]))
    line = json.loads(as_json(item, result(CompletionOutput(finish_reason=FinishReason.ERROR), NonFiniteLogits("NaN"))))
    assert line["error"] == {"code": "non_finite_logits", "message": "NaN"}
    assert line["finish_reason"] == "error" and line["messages"][0]["content"] == "x" and "logprobs" not in line


@given(st.permutations(range(12)), st.integers(0, 12))
def test_lines_are_in_order_and_those_after_a_gap_are_not_lost(order: list[int], finished: int) -> None:
    file = io.StringIO()
    lines = OrderedWriter(file)
    for index in order[:finished]:
        lines.put(index, str(index))
        written = [int(line) for line in file.getvalue().split()]
        assert written == list(range(len(written)))
    lines.close()
    assert [int(line) for line in file.getvalue().split()] == sorted(order[:finished])
    assert lines.written == finished


def test_a_full_disk_keeps_whole_lines_and_ends_the_writing(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    with LineFile(str(path)) as file:
        lines = OrderedWriter(file)
        lines.put(0, "a" * 10)
        with file_size_limit(15), pytest.raises(FileNotWritten, match=rf"^cannot write {path}: file too large$"):
            lines.put(1, "b" * 10)
        assert not file.isatty()
        lines.put(2, "c")  # the disk has room again, but a line is missing
        lines.close()
    assert path.read_text() == "a" * 10 + "\n" and lines.written == 1


def test_a_line_is_written_as_soon_as_those_before_it_are() -> None:
    file = io.StringIO()
    lines = OrderedWriter(file)
    lines.put(1, "b")
    assert file.getvalue() == ""
    lines.put(0, "a")
    assert file.getvalue() == "a\nb\n"
