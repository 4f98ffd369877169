"""Plots: a report becomes a PNG; without matplotlib one sentence says what to install."""

import importlib.util
import struct
from pathlib import Path
from typing import Any

import pytest

from chairlift.bench.report import plot
from chairlift.core.errors import ConfigError
from chairlift.core.file_writes import FileNotWritten

REPORT: dict[str, Any] = {
    "model": {"name": "tiny"}, "workload": {"name": "longtail"}, "output_tokens_per_second": 5.0,
    "samples": {"latency_seconds": [1.0, 2.0, 4.0], "ttft_seconds": [0.1, 0.1, 0.2]},
    "kv_cache_usage": {"total_kv_tokens": 100},
    "timeline": {
        "at": [0.1, 0.2, 0.3], "running": [3, 2, 0], "waiting": [1, 0, 0], "allocated_kv_tokens": [48, 32, 0],
        "unused_kv_tokens": [4, 8, 0],
    },
    "arms": [{"name": "chairlift", "runs": [{}]}],
}  # fmt: skip


def compared(*speeds: float) -> dict[str, Any]:
    """Return a report of arms with three runs each."""
    return {
        "model": {"name": "tiny"}, "workload": {"name": "w1"}, "output_tokens_per_second": speeds[0],
        "arms": [{
            "name": f"arm {speed}",
            "runs": [{"output_tokens_per_second": speed + n, "ttft_seconds": {"mean": 1.0}} for n in (-1, 0, 1)],
        } for speed in speeds],
        "ratios": [{"output_tokens_per_second": speed, "ttft_seconds.mean": None} for speed in speeds],
    }  # fmt: skip


def drawn(path: Path, report: dict[str, Any]) -> tuple[int, int]:
    """Draw a report; returns width and height of the image."""
    plot.draw(report, str(path))
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and data.rstrip().endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


@pytest.mark.full
def test_a_report_becomes_a_png(tmp_path: Path) -> None:
    width, height = drawn(tmp_path / "out.png", REPORT)
    assert width >= 600 and height >= 600


@pytest.mark.full
def test_what_is_drawn_hangs_on_what_was_measured(tmp_path: Path) -> None:
    drawn(tmp_path / "one.png", REPORT)
    drawn(tmp_path / "same.png", REPORT)
    drawn(tmp_path / "other.png", {**REPORT, "timeline": {**REPORT["timeline"], "waiting": [5, 1, 0]}})
    one, same, other = ((tmp_path / f"{name}.png").read_bytes() for name in ("one", "same", "other"))
    assert one == same != other


@pytest.mark.full
def test_arms_are_drawn_side_by_side_the_more_of_them_the_higher(tmp_path: Path) -> None:
    sizes = [drawn(tmp_path / f"{count}.png", compared(*[5.0 * n for n in range(1, count + 1)])) for count in (2, 6)]
    assert sizes[0][0] == sizes[1][0] and sizes[0][1] < sizes[1][1]
    drawn(tmp_path / "other.png", compared(5.0, 11.0))
    assert (tmp_path / "2.png").read_bytes() != (tmp_path / "other.png").read_bytes()


@pytest.mark.full
def test_a_run_in_which_nothing_came_can_be_drawn(tmp_path: Path) -> None:
    empty = {"latency_seconds": [], "ttft_seconds": []}
    drawn(tmp_path / "out.png", {**REPORT, "samples": empty, "timeline": {name: [] for name in REPORT["timeline"]}})


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotWritten, match="cannot write"):
        plot.draw(REPORT, str(tmp_path / "no" / "out.png"))


def test_without_matplotlib_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    plot.check_plot()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs matplotlib: pip install 'chairlift\[plot\]'"):
        plot.check_plot()
