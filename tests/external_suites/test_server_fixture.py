"""Serving: the server of the suites has all the names, and is gone afterwards; one that cannot start says why."""

from pathlib import Path

import httpx
import pytest

from external_suites.server_fixture import serving


def test_a_server_under_some_names(tmp_path: Path) -> None:
    with serving(["one", "two"], tmp_path / "log") as url:
        result = httpx.get(url + "/v1/models", timeout=30).json()["data"]
        assert [model["id"] for model in result] == ["one", "two"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(url + "/livez", timeout=30)


def test_a_server_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAIRLIFT_NUM_BLOCKS", "none")
    with (
        pytest.raises(RuntimeError, match="did not get ready:\nchairlift: CHAIRLIFT_NUM_BLOCKS must be"),
        serving(["x"], tmp_path / "log"),
    ):
        pass
