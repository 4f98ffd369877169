"""check_output, check_outputs: files that cannot be written or are named twice are errors; no file is changed."""

import os
from pathlib import Path

import pytest

from chairlift.cli.output_file_checks import check_output, check_outputs
from chairlift.core.errors import ConfigError


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
