"""`chairlift router`: invalid input is one sentence before it listens, and its settings reach the router."""

from pathlib import Path

import httpx
import pytest

from chairlift.cli.main import main
from chairlift.core.errors import ConfigError
from chairlift.router.proxy.upstream import UpstreamConfig
from support_cli import rejection_sentence
from support_process import TIMEOUT_SECONDS
from support_server import CHAT, fake_server, router_server

REPLICA = ["--replica", "http://127.0.0.1:9"]


@pytest.mark.share(5)
@pytest.mark.parametrize(("words", "sentence"), [
    ([], "a router needs replicas: name them by --replica http://HOST:PORT, or where to find them by --discovery"),
    (["--replica", "http://a/b"], "--replica 'http://a/b': 'http://a/b' has more than scheme, host and port"),
    (["--replica", "http://a;size=1"], "'size=1' of the replica 'http://a;size=1' is none of weight=..."),
    (["--discovery", "foo"], "--discovery 'foo' is no discovery source; it should look like file:replicas.yaml"),
    (["--discovery", "file:nowhere.yaml"], "--discovery 'file:nowhere.yaml': cannot read nowhere.yaml: No such file"),
    (["--discovery", "kubernetes://a/b"], "--discovery 'kubernetes://a/b' needs a pod of the cluster"),
    ([*REPLICA, "--policy", "best"], "--policy must be one of round_robin, weighted, random, least_connections, "),
    ([*REPLICA, "--model-route", "a=b", "--model-route", "b=a"], "--model-route 'a' leads back to itself: a → b → a"),
    ([*REPLICA, "--max-attempts", "0"], "--max-attempts must be at least 1, got 0"),
    ([*REPLICA, "--probe-interval", "0"], "--probe-interval must be a number of seconds above 0, got 0"),
    ([*REPLICA, "--max-failures", "x"], "--max-failures must be an integer, got 'x'"),
    ([*REPLICA, "--notify-url", "hooks"], "--notify-url must be an http or https URL, such as https://hooks.example/"),
    ([*REPLICA, "--shared-state", "foo"], "--shared-state 'foo' must look like redis://host:port/db"),
    ([*REPLICA, "--shared-state-password-file", "a"],
     "--shared-state-password-file needs --shared-state, the URL of Redis"),
    ([*REPLICA, "--shared-state", "redis://h", "--shared-state-password-file", "nowhere"],
     "cannot read --shared-state-password-file nowhere: No such file or directory"),
    ([*REPLICA, "--shared-state", "redis+sentinel://h/m", "--shared-state-sentinel-password-file", "/dev/null"],
     "--shared-state-sentinel-password-file /dev/null has no password in its first line"),
    ([*REPLICA, "--replica-key-file", "nowhere"], "cannot read --replica-key-file nowhere: No such file or directory"),
    ([*REPLICA, "--replica-key-file", "/dev/null"], "--replica-key-file /dev/null has no API key in its first line"),
    ([*REPLICA, "--replica-tls-ca", "nowhere.pem"], "cannot read --replica-tls-ca nowhere.pem: No such file"),
    ([*REPLICA, "--replica-tls-cert", "a.pem"], "--replica-tls-cert needs --replica-tls-key, too: a certificate and "),
    ([*REPLICA, "--replica-tls-cert", "a.pem", "--replica-tls-key", "a.key"],
     "cannot use --replica-tls-cert a.pem with --replica-tls-key a.key: No such file or directory"),
    ([*REPLICA, "--tls-cert", "a.pem", "--tls-key", "a.key"], "cannot read --tls-cert a.pem: No such file"),
    ([*REPLICA, "--key-file", "nowhere.txt"], "cannot read --key-file nowhere.txt: No such file or directory"),
    ([*REPLICA, "--host", "0.0.0.0"], "--host 0.0.0.0 is not a loopback address and needs API keys; set --key-file"),
    ([*REPLICA, "--port", "65536"], "--port must be between 0 and 65535, got 65536"),
    ([*REPLICA, "--max-num-seqs", "5"], "unknown option --max-num-seqs"),
])  # fmt: skip
def test_invalid_input_is_one_sentence_and_exit_code_two(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rejection_sentence(capsys, main(["router", "--port", "0", *words])).startswith(sentence)


def test_the_key_of_the_replicas_is_read_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may come from a pipe, which has it once."""
    num_reads = 0

    def count_read(config: UpstreamConfig) -> str:
        nonlocal num_reads
        num_reads += 1
        return "key"

    def stop(config: UpstreamConfig) -> None:
        config.read_key()
        raise ConfigError("the test ends here")

    monkeypatch.setattr(UpstreamConfig, "read_key", count_read)
    monkeypatch.setattr("chairlift.router.router.Upstream", stop)
    sentence = rejection_sentence(capsys, main(["router", "--port", "0", *REPLICA, "--replica-key-file", "key"]))
    assert sentence.startswith("the test ends here") and num_reads == 1


def test_a_variable_and_a_line_of_the_file_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHAIRLIFT_POLICY", "best")
    sentence = rejection_sentence(capsys, main(["router", *REPLICA]))
    assert sentence.startswith("CHAIRLIFT_POLICY must be one of round_robin, ") and sentence.endswith("got 'best'")
    monkeypatch.delenv("CHAIRLIFT_POLICY")
    path = tmp_path / "router.yaml"
    path.write_text("replica: [http://a]\nprobe_timeout: 0\n", encoding="utf-8")
    sentence = rejection_sentence(capsys, main(["router", "--config", str(path)]))
    assert sentence == f"probe_timeout must be a number of seconds above 0, got 0 ({path} line 2)"


def test_a_router_of_a_file_and_flags_serves_the_models_of_its_replicas(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    with fake_server() as replica:
        path.write_text(
            f"replica: ['{replica.url};weight=2']\nmodel_route: [chat=fake]\npolicy: random\nport: 1\n"
            "max_body_bytes: 2000\ntemperature: 0.5\n", encoding="utf-8",
        )  # fmt: skip
        flags = ("--config", str(path), "--policy", "least_connections")
        with router_server(*flags, CHAIRLIFT_API_KEY="k", CHAIRLIFT_ADMIN_KEY="a") as router:
            key, admin = {"authorization": "Bearer k"}, {"authorization": "Bearer a"}
            with httpx.Client(base_url=router.url, headers=key, timeout=TIMEOUT_SECONDS) as http:
                models = http.get("/v1/models").json()["data"]
                assert [model["id"] for model in models] == ["chat", "fake"]
                assert models[0]["max_model_len"] == models[1]["max_model_len"] > 0
                body = {"model": "chat", "messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
                response = http.post(CHAT, json=body)
                assert response.status_code == 200 and response.json()["usage"]["completion_tokens"] == 3
                assert response.json()["model"] == "chat"
                streamed = http.post(CHAT, json={**body, "stream": True}).text
                assert '"model":"chat"' in streamed and '"model":"fake"' not in streamed
                assert http.post(CHAT, json={**body, "user": "u" * 2000}).status_code == 413
                [row] = http.get("/admin/replicas", headers=admin).json()["replicas"]
                assert (row["weight"], row["kind"], row["num_attempts"]) == (2.0, "chairlift", 2)
                report = http.get("/admin/debug", headers=admin).json()
                assert report["settings"]["policy"] == "least_connections"
                assert "does not read temperature" in str(report["log"])
            assert any(line.split() == ["policy", "least_connections"] for line in router.lines), router.log
            assert "does not read temperature" in router.log
            assert router.stop() == 0
