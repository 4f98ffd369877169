"""run_server(): the server has all its model names and stops; a server that does not start shows its log."""

from pathlib import Path

import httpx
import pytest

from external_suites.server_process import run_server


def test_a_server_under_some_names(tmp_path: Path) -> None:
    with run_server(["one", "two"], tmp_path / "log") as url:
        result = httpx.get(url + "/v1/models", timeout=30).json()["data"]
        assert [model["id"] for model in result] == ["one", "two"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(url + "/livez", timeout=30)


def test_a_server_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAIRLIFT_NUM_BLOCKS", "none")
    with (
        pytest.raises(RuntimeError, match="did not become ready:\nchairlift: CHAIRLIFT_NUM_BLOCKS must be"),
        run_server(["x"], tmp_path / "log"),
    ):
        pass
