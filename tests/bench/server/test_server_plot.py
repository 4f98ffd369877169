"""Server plots: a report becomes a PNG with all of its phases."""

import struct
from pathlib import Path
from typing import Any

import pytest

from chairlift.bench.server import server_plot
from chairlift.core.file_writes import FileNotWritten


def phase(name: str, good: float | None, *first: float) -> dict[str, Any]:
    samples = {"ttft_seconds": list(first), "e2e_seconds": [each * 3 for each in first]}
    return {"name": name, "sent_per_second": 2.0, "goodput_per_second": good, "samples": samples}


def drawn(path: Path, *phases: dict[str, Any]) -> bytes:
    server_plot.draw({"model": {"name": "m"}, "workload": {"name": "w"}, "phases": list(phases)}, str(path))
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and min(struct.unpack(">II", data[16:24])) >= 600
    return data


@pytest.mark.full
def test_what_is_drawn_hangs_on_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    one = drawn(path, phase("1/s", 1.0, 0.1, 0.2), phase("2/s", 2.0, 0.1, 0.4))
    assert one == drawn(path, phase("1/s", 1.0, 0.1, 0.2), phase("2/s", 2.0, 0.1, 0.4))
    assert one != drawn(path, phase("1/s", 1.0, 0.1, 0.2), phase("2/s", 1.0, 0.1, 0.4))
    assert one != drawn(path, phase("1/s", 1.0, 0.1, 0.3), phase("2/s", 2.0, 0.1, 0.4))


def test_a_phase_in_which_nothing_ended_can_be_drawn(tmp_path: Path) -> None:
    drawn(tmp_path / "out.png", phase("1/s", None))


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotWritten, match="cannot write"):
        drawn(tmp_path / "no" / "out.png", phase("1/s", 1.0, 0.1))
