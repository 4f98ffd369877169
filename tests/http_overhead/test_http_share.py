"""Both ways run the same requests, in turns, and what is left over HTTP is told."""

import io
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from http_overhead.__main__ import compared, main
from http_overhead.paths import Task, offline, served
from http_overhead.resident_engine import serve

TASK = Task(
    model="chairlift:random", options={"num_blocks": 1200}, workload="w1", requests=32, vocab_size=200
)  # fmt: skip


def test_both_ways_run_each_turn_and_the_first_does_not_count() -> None:
    asked: dict[str, list[int]] = {"offline": [], "http": []}
    order: list[str] = []

    def way(name: str, speed: float) -> float:
        order.append(name)
        return speed

    ways = {
        "offline": lambda seed: way("offline", asked["offline"].append(seed) or 100.0 + seed),
        "http": lambda seed: way("http", asked["http"].append(seed) or (0.0 if seed == 7 else 50.0 + seed)),
    }
    found = compared(ways, 3, 7, lambda line: None)
    assert asked == {"offline": [7, 8, 9, 10], "http": [7, 8, 9, 10]}
    assert found["output_tokens_per_second"] == {"offline": [108.0, 109.0, 110.0], "http": [58.0, 59.0, 60.0]}
    assert found["shares"] == pytest.approx([58 / 108, 59 / 109, 60 / 110])
    assert found["median_share"] == pytest.approx(59 / 109)
    assert {tuple(order[at : at + 2]) for at in range(0, 8, 2)} <= {("offline", "http"), ("http", "offline")}


def test_an_engine_that_stays_answers_each_seed() -> None:
    out = io.StringIO()
    order = {"model": TASK.model, "options": dict(TASK.options), "workload": TASK.workload, "vocab_size": 200}
    serve(order, ["3\n", "4\n"], out)
    ready, *speeds = out.getvalue().split()
    assert ready == "ready" and len(speeds) == 2 and all(float(speed) > 0 for speed in speeds)


def test_a_process_that_does_not_start_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="ended before it answered"), offline(replace(TASK, model="/nowhere")):
        pass


def test_a_run_of_which_a_request_failed_is_an_error() -> None:
    with (
        served(replace(TASK, options={"num_blocks": 2})) as server,
        pytest.raises(RuntimeError, match=r"bench serve failed|not every request"),
    ):
        server.run(0)


def test_it_is_measured_and_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "share.json"
    assert (
        main(["chairlift:random", "--dtype", "float32", "--turns", "1", "--vocab-size", "200", "--json", str(path)])
        == 0
    )
    report = msgspec.json.decode(path.read_bytes())
    assert report["kind"] == "chairlift http share" and len(report["shares"]) == 1
    assert "http over offline: " in capsys.readouterr().out
