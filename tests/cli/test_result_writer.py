"""Result writer: JSON lines in the order of the items, and checks of output files."""

import io
import json
import os
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.cli.prompt_items import PromptItem
from chairlift.cli.result_writer import OrderedWriter, as_json, check_output, check_outputs, deferred_interrupt
from chairlift.core.engine_output import FinishReason, TokenLogprob, Usage
from chairlift.core.errors import ConfigError, NonFiniteLogits
from chairlift.llm.outputs import CompletionOutput, RequestOutput


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


def test_a_line_is_written_as_soon_as_those_before_it_are() -> None:
    file = io.StringIO()
    lines = OrderedWriter(file)
    lines.put(1, "b")
    assert file.getvalue() == ""
    lines.put(0, "a")
    assert file.getvalue() == "a\nb\n"


def test_files_that_cannot_be_written_are_rejected_and_others_stay_unchanged(tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text("old")
    check_output(str(kept))
    check_output(str(tmp_path / "new.jsonl"))
    check_output(os.devnull)
    assert kept.read_text() == "old" and not (tmp_path / "new.jsonl").exists()
    with pytest.raises(ConfigError, match="it is a folder"):
        check_output(str(tmp_path))
    with pytest.raises(ConfigError, match="there is no folder"):
        check_output(str(tmp_path / "none" / "x.jsonl"))


def test_an_interrupt_waits_for_the_end_of_the_block_and_a_second_one_does_not() -> None:
    before, reached = signal.getsignal(signal.SIGINT), []

    def block(interrupts: int) -> None:
        with deferred_interrupt():
            for number in range(interrupts):
                reached.append(number)
                signal.raise_signal(signal.SIGINT)
            reached.append(99)

    with pytest.raises(KeyboardInterrupt):
        block(1)
    with pytest.raises(KeyboardInterrupt):
        block(2)
    block(0)
    assert reached == [0, 99, 0, 1, 99]
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_has_no_interrupt_to_defer() -> None:
    calls: list[int] = []

    def work() -> None:
        with deferred_interrupt():
            calls.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert calls == [1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to every file")
def test_a_file_without_permission_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "x").touch(mode=0o400)
    with pytest.raises(ConfigError, match="permission denied"):
        check_output(str(tmp_path / "x"))


def test_no_two_files_of_a_command_are_the_same_one(tmp_path: Path) -> None:
    trace, other, link = tmp_path / "t.jsonl", tmp_path / "o.json", tmp_path / "link"
    trace.touch()
    link.symlink_to(trace)
    check_outputs({"--json": str(other), "--plot": None}, {"--workload": str(trace), "--fit": None})
    check_outputs({"--json": "/dev/null", "--plot": "/dev/null"}, {"--workload": "longtail"})
    for outputs in ({"--json": str(trace)}, {"--json": str(link)}):
        with pytest.raises(ConfigError, match="--workload and --json are the same file"):
            check_outputs(outputs, {"--workload": str(trace)})
    with pytest.raises(ConfigError, match="--json and --plot are the same file"):
        check_outputs({"--json": str(other), "--plot": str(tmp_path / "." / "o.json")})
    with pytest.raises(ConfigError, match="cannot write"):
        check_outputs({"--json": str(tmp_path)})
    assert trace.read_bytes() == b""
