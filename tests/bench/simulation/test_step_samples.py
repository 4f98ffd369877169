"""read_samples: steps from lines of stats or from a trace, even a cut one; other lines are errors."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from chairlift.bench.simulation.sim_step_model import StepWork
from chairlift.bench.simulation.step_samples import read_samples, sample
from chairlift.core.errors import ConfigError
from chairlift.observability.perfetto_profile import PerfettoProfile
from support_step_stats import make_stats


def test_steps_are_read_from_lines_of_stats(tmp_path: Path) -> None:
    steps = [
        replace(
            make_stats(number, num_sequences=number + 1), started_ms=10.0 * number, collect_started_ms=10.0 * number + 1
        )
        for number in range(3)
    ]
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps(asdict(step)) + "\n" for step in steps) + "\n")
    assert read_samples(str(path)) == [sample(step) for step in steps]
    assert read_samples(str(path))[1].work.rows == steps[1].num_sequences


def test_steps_are_read_from_a_trace_even_when_it_was_cut_off(tmp_path: Path) -> None:
    path, trace = tmp_path / "trace.json", PerfettoProfile(tmp_path / "trace.json")
    numbers = {"rows": 2, "prefill tokens": 3, "context tokens": 40, "prefill pairs": 5}
    for begin in (100.0, 200.0):
        phases = [(begin, begin + 1), (begin + 1, begin + 5), (begin + 5, begin + 6), (begin + 6, begin + 8)]
        trace.step("step 7", phases, numbers)
        trace.counters(begin + 8, {"requests": {"running": 1}})
    assert trace.close() is None
    whole = read_samples(str(path))
    assert [each.work for each in whole] == [StepWork(1, 2, 3, 40, 5)] * 2
    assert [each.started_at for each in whole] == [0.1, 0.2]
    assert [each.ended for each in whole] == pytest.approx([0.108, 0.208])
    path.write_text(path.read_text().rpartition('{"ph":"M"')[0])
    assert read_samples(str(path)) == whole


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no steps"),
        ("nonsense", "line 1 is neither"),
        ('{"ph": "X", "cat": "step", "name": "step 1", "ts": 0, "dur": 1, "args": {}}', "line 1 is neither"),
        ('\n{"step_id": 1}', "line 2 is neither"),
        ("5", "line 1 is neither"),
    ],
)
def test_a_file_without_steps_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_samples(str(path))


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_samples(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    "line", ['"graph"', '{"ph": 1}', '{"ph": "X", "name": 5}', '{"ph": "X", "cat": "step", "name": "step 1"}', "\udcff"]
)
def test_a_line_of_another_kind_is_one_sentence(tmp_path: Path, line: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(line.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match="line 1 is neither a trace event nor a step"):
        read_samples(str(path))
