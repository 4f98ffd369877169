"""run_server(): the server has all its model names and stops; a server that does not start shows its log."""

from pathlib import Path

import httpx
import pytest

from external_suites.suite_servers import demo_command, router_command, run_server, scripted_command


@pytest.mark.full
def test_a_server_under_some_names(tmp_path: Path) -> None:
    with run_server(demo_command(["one", "two"]), tmp_path / "log") as url:
        result = httpx.get(url + "/v1/models", timeout=30).json()["data"]
        assert [model["id"] for model in result] == ["one", "two"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(url + "/livez", timeout=30)


@pytest.mark.full
def test_a_server_with_scripted_replies(tmp_path: Path) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "How many legs have two cats?"}]}
    with run_server(scripted_command(), tmp_path / "log") as url:
        message = httpx.post(url + "/v1/chat/completions", json=body, timeout=30).json()["choices"][0]["message"]
    assert message["content"] == "Eight." and message["reasoning_content"].startswith("A cat has 4 legs.")


@pytest.mark.full
def test_a_router_in_front_of_a_server(tmp_path: Path) -> None:
    with (
        run_server(scripted_command(), tmp_path / "log") as url,
        run_server(router_command(url), tmp_path / "router") as routed_url,
    ):
        response = httpx.get(routed_url + "/v1/models", timeout=30)
    assert [model["id"] for model in response.json()["data"]] == ["scripted"] and routed_url != url


def test_a_server_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAIRLIFT_NUM_BLOCKS", "none")
    with (
        pytest.raises(RuntimeError, match="did not become ready:\nchairlift: CHAIRLIFT_NUM_BLOCKS must be"),
        run_server(demo_command(["x"]), tmp_path / "log"),
    ):
        pass
