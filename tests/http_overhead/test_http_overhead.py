"""http_overhead: both arms run the same requests in each round, and the report has the ratio of their speeds."""

import io
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from http_overhead.__main__ import compare_arms, main
from http_overhead.engine_and_server_processes import BenchmarkSpec, run_http_server, run_offline_engine
from http_overhead.resident_engine import run_seeds

SPEC = BenchmarkSpec(
    model="chairlift:random", options={"num_blocks": 1200}, workload="w1", num_requests=32, vocab_size=200
)


def test_both_arms_run_in_each_round_and_the_first_round_is_discarded() -> None:
    seeds: dict[str, list[int]] = {"offline": [], "http": []}
    order: list[str] = []

    def record_run(name: str, speed: float) -> float:
        order.append(name)
        return speed

    arms = {
        "offline": lambda seed: record_run("offline", seeds["offline"].append(seed) or 100.0 + seed),
        "http": lambda seed: record_run("http", seeds["http"].append(seed) or (0.0 if seed == 7 else 50.0 + seed)),
    }
    result = compare_arms(arms, 3, 7, lambda line: None)
    assert seeds == {"offline": [7, 8, 9, 10], "http": [7, 8, 9, 10]}
    assert result["output_tokens_per_second"] == {"offline": [108.0, 109.0, 110.0], "http": [58.0, 59.0, 60.0]}
    assert result["shares"] == pytest.approx([58 / 108, 59 / 109, 60 / 110])
    assert result["median_share"] == pytest.approx(59 / 109)
    assert {tuple(order[at : at + 2]) for at in range(0, 8, 2)} <= {("offline", "http"), ("http", "offline")}


@pytest.mark.full
def test_a_resident_engine_runs_each_seed() -> None:
    out = io.StringIO()
    spec = {"model": SPEC.model, "options": dict(SPEC.options), "workload": SPEC.workload, "vocab_size": 200}
    run_seeds(spec, ["3\n", "4\n"], out)
    ready, *speeds = out.getvalue().split()
    assert ready == "ready" and len(speeds) == 2 and all(float(speed) > 0 for speed in speeds)


def test_a_process_that_does_not_start_is_an_error() -> None:
    with (
        pytest.raises(RuntimeError, match="ended before it wrote a line"),
        run_offline_engine(replace(SPEC, model="/nowhere")),
    ):
        pass


@pytest.mark.full
def test_a_failed_request_is_an_error() -> None:
    with (
        run_http_server(replace(SPEC, options={"num_blocks": 2}, num_requests=4)) as server,
        pytest.raises(RuntimeError, match=r"bench serve failed|only \d+ of 4 requests succeeded"),
    ):
        server.run(0)


@pytest.mark.full
def test_the_report_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "share.json"
    assert (
        main(["chairlift:random", "--dtype", "float32", "--turns", "1", "--vocab-size", "200", "--json", str(path)])
        == 0
    )
    report = msgspec.json.decode(path.read_bytes())
    assert report["kind"] == "chairlift http share" and len(report["shares"]) == 1
    assert "http over offline: " in capsys.readouterr().out
