"""`chairlift serve`: its settings reach the server, and invalid ones are one sentence."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from chairlift.cli import serve_model
from chairlift.cli.commands import serve
from chairlift.cli.main import main
from chairlift.server.server_process import ServerParts
from chairlift.web.auth.api_keys import key_line
from support_forks import SERVER_MODULES, run_process
from support_process import wait_until
from support_server import CHAT, real_server

TINY = ("--num-blocks", "256", "--max-running-requests", "4")


def run_command(*words: str) -> tuple[int, str]:
    """Run a command that ends by itself; returns its exit code and output."""
    completed = run_process([sys.executable, "-m", "chairlift", *words], modules=SERVER_MODULES, text=True)
    return completed.returncode, completed.stdout + completed.stderr


@pytest.mark.share(2)
@pytest.mark.parametrize(("words", "sentence"), [
    (["--max-queue-size", "5"], "--max-queue-size is 5 sequences, less than --max-waiting-requests (1024)"),
    (["--host", "0.0.0.0"], "--host 0.0.0.0 is not a loopback address and needs API keys"),
    (["--host", "::"], "needs API keys"),
    (["--port", "65536"], "--port must be between 0 and 65535, got 65536"),
    (["--served-model-name", ""], "--served-model-name must not be empty, got ''"),
    (["--served-model-name", "a", "--served-model-name", ""], "--served-model-name must not be empty, got ''"),
    (["--port", "x"], "--port must be an integer, got 'x'"),
    (["--tls-cert", "a.pem"], "--tls-cert needs --tls-key, too"),
    (["--key-file", "nowhere.txt"], "cannot read --key-file nowhere.txt: No such file or directory"),
    (["--jwt-secret-file", "nowhere.txt"], "cannot read --jwt-secret-file nowhere.txt: No such file or directory"),
    (["--jwt-secret-file", "a", "--jwt-jwks-file", "b"], "--jwt-secret-file and --jwt-jwks-file exclude each other"),
    (["--jwt-secret-file", "/dev/null"], "--jwt-secret-file /dev/null has 0 bytes, HS256 needs at least 32"),
    (["--jwt-jwks-file", "/dev/null"], "--jwt-jwks-file /dev/null is not JSON"),
    (["--key-file", "/dev/null"], "--key-file /dev/null has no key"),
    (["--allowed-host", "http://a"], "--allowed-host must be a name or an address without scheme and port"),
    (["--allowed-origins", '["a"]'], "--allowed-origins must be a scheme and a host without a path"),
    (["--device", "gpu"], "--device 'gpu' is unknown; known are auto, cpu, cuda, mps"),
    (["--jwt-jwks-file", "a", "--jwt-algorithm", "HS256"], "--jwt-algorithm HS256 needs a secret in --jwt-secret-file"),
    (["--jwt-issuer", "a"], "--jwt-issuer needs --jwt-secret-file, --jwt-jwks-file or CHAIRLIFT_JWT_SECRET"),
    (["--register", "etcd://h/p", "--host", "0.0.0.0", "--insecure"],
     "--host 0.0.0.0 is no address that a router can reach; set --advertise-url to the URL of this replica"),
    (["--register", "redis://h"], "'redis://h' names no registry; it should look like etcd://127.0.0.1:2379/"),
    (["--register-zone", "a"], "--register-zone needs --register, too: the URL of a registry"),
    (["--jwt-leeway", "601"], "--jwt-leeway must be between 0 and 600 seconds, got 601"),
    (["--tls-client-ca", "a.pem"], "--tls-client-ca needs --tls-cert and --tls-key, too"),
    (["--metric-alias", "nagios"], "--metric-alias must be one of vllm, transformers, got 'nagios'"),
    (["--write-timeout", "0"], "--write-timeout must be a positive number of seconds, got 0"),
    (["--frobnicate"], "unknown option --frobnicate; `chairlift serve --help` lists the options"),
    (["nowhere/at-all", "--port", "0"], "nowhere/at-all"),
    (["a", "b"], "unexpected argument 'b': the command takes one MODEL"),
    (["--dtype", "fp16x"], "--dtype 'fp16x' is unknown; known are auto, float64, float32, bfloat16, float16, and the"),
    (["--max-model-len", "100000"], "--max-model-len is 100000, the model's limit is 2048"),
    (["--max-memory", "1KB"], "--max-memory is 1000 bytes, one sequence needs at least 3 blocks of "),
    (["--max-memory", "1.5"], "--max-memory must be a fraction in (0, 1] or a number of bytes, got 1.5"),
    (["--num-blocks", "3"], "--num-blocks is 3, a request of --max-model-len 2048 tokens needs 128; raise "),
    (["--num-blocks", "3", "--max-model-len", "50"], "3, a request of --max-model-len 50 tokens needs 4"),
    (["--max-num-seqs", "0"], "--max-num-seqs must be at least 1, got 0"),
    (["--ctx-size", "100000"], "--ctx-size is 100000, the model's limit is 2048"),
    (["--pipeline-parallel-size", "2"], "--pipeline-parallel-size 2 is not supported: a server runs one copy of a mod"),
    (["--tensor-parallel-size", "7"], "--tensor-parallel-size is 7, but the model's 4 query heads"),
    (["-tp", "2", "--quantization", "int8"], "-tp is 2, but quantization 'int8' runs on one rank only; set -tp to 1"),
    (["--middleware", "m"], "--middleware is not supported: no code of others runs in the server; put a proxy"),
    (["--max-num-seq", "4"], "unknown option --max-num-seq; did you mean --max-num-seqs?"),
    (["a", "--model", "b"], "MODEL is a and --model is b; give one of them"),
    (["--quantization", "q4"], "--quantization 'q4' is unknown; known are auto, none, int8, int8-channel"),
    (["--quantization", "awq"], "--quantization 'awq' is that of another checkpoint: the model has no quantized wei"),
    (["--attention-backend", "flash"], "'flash' is unknown; known are auto, torch, triton, reference, flashinfer, fa3"),
    (["--tls-cert", "none.pem", "--tls-key", "none.key"], "cannot read --tls-cert none.pem: No such file or directory"),
])  # fmt: skip
def test_invalid_input_is_one_sentence_and_exit_code_two(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def starts(parts: ServerParts) -> None:
        parts.read_credentials()
        pytest.fail("the server is started")

    monkeypatch.setattr(serve_model, "serve", starts)
    monkeypatch.setattr(serve, "launch_engine", lambda: None)
    assert main(["serve", *words]) == 2
    output = "".join(capsys.readouterr())
    assert sentence in output and output.splitlines()[-1].startswith("chairlift: ")


def test_the_engine_process_is_launched_before_the_server_is_imported() -> None:
    code = """if True:
        import sys
        from chairlift.cli.commands import serve

        def launch_engine():
            sys.exit(str({"chairlift.cli.serve_model", "uvicorn", "aiohttp", "torch"} & set(sys.modules)))

        serve.launch_engine = launch_engine
        serve.run(None)
    """
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == "set()\n"


def test_the_launched_process_is_closed_when_nothing_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    launched = SimpleNamespace(close=lambda: closed.append("closed"))
    monkeypatch.setattr(serve, "launch_engine", lambda: launched)
    assert main(["serve", "--max-queue-size", "5"]) == 2
    assert closed == ["closed"]


def test_a_port_in_use_is_one_sentence_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = run_command("serve", "chairlift:random", "--port", str(port))
    assert code == 2 and f"cannot listen on 127.0.0.1 port {port}: Address already in use" in output
    assert "listening" not in output and "Traceback" not in output


@pytest.mark.full
@pytest.mark.parametrize(
    "device", ["cuda:77", *(pytest.param(each, marks=pytest.mark.full) for each in ("tpu", "mps:9", "meta:x"))]
)
def test_a_device_that_the_machine_lacks_is_one_sentence_before_it_listens(device: str) -> None:
    """On a machine without a driver, "cuda" is such a device, too."""
    code, output = run_command("serve", "chairlift:random", "--port", "0", "--device", device)
    assert code == 2 and output.count(f"--device '{device}' ") == 1 and "Traceback" not in output
    assert "listening" not in output and len(output.splitlines()) <= 2, output


def test_an_engine_that_does_not_start_is_reported_once() -> None:
    code, output = run_command("serve", "chairlift:random", "--port", "0", "--kernels", "native", "--dtype", "float64")
    assert code == 2 and output.count("the native kernels cannot run this model") == 1 and "Traceback" not in output


def test_a_real_server_prints_its_phases_and_serves_its_names() -> None:
    names = ("--served-model-name", "toy", "--served-model-name", "other")
    with real_server(*TINY, *names, is_forked=False, CHAIRLIFT_MAX_MODEL_LEN="300") as server:
        cards = httpx.get(server.url + "/v1/models").json()["data"]
        assert [card["id"] for card in cards] == ["toy", "other"] and cards[0]["max_model_len"] == 300
        body = {"model": "other", "messages": [{"role": "user", "content": "Hello!"}]}
        response = httpx.post(server.url + CHAT, json=body, timeout=60)
        assert response.status_code == 200 and response.json()["model"] == "other"
        assert httpx.post(server.url + CHAT, json={**body, "model": "chairlift:demo"}, timeout=60).status_code == 200
        assert httpx.post(server.url + CHAT, json={**body, "model": "demo"}).status_code == 404
        assert server.stop() == 0
    assert server.lines[0].startswith("no model given: the embedded demo model")
    for word in ("listening on http://127.0.0.1:", "  dtype", "  seconds to load", "ready after ", "stopped"):
        assert any(line.startswith(word) for line in server.lines), server.log


def test_tokens_of_the_token_command_and_an_allowed_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "0123456789abcdef0123456789abcdef"
    file = tmp_path / "serve.yaml"
    file.write_text("jwt_audience: llm\nallowed_host: [proxy.example]\n", encoding="utf-8")
    monkeypatch.setenv("CHAIRLIFT_JWT_SECRET", secret)
    assert main(["token", "alice", "--config", str(file)]) == 0
    token = {"authorization": f"Bearer {capsys.readouterr().out.strip()}"}
    with real_server(*TINY, "chairlift:random", "--config", str(file)) as server:
        url = server.url + "/v1/models"
        statuses = [httpx.get(url, headers=headers).status_code for headers in (
            {}, token, {**token, "host": "proxy.example"}, {**token, "host": "evil.example"},
        )]  # fmt: skip
        assert statuses == [401, 200, 200, 403]
        assert secret not in server.log


def test_keys_of_the_environment() -> None:
    with real_server(*TINY, "chairlift:random", CHAIRLIFT_API_KEY="k", CHAIRLIFT_ADMIN_KEY="a") as server:
        assert httpx.get(server.url + "/v1/models").status_code == 401
        assert httpx.get(server.url + "/v1/models", headers={"authorization": "Bearer k"}).status_code == 200
        assert httpx.get(server.url + "/admin/state", headers={"authorization": "Bearer a"}).status_code == 200
        settings = httpx.get(server.url + "/admin/debug", headers={"authorization": "Bearer a"}).json()["settings"]
        assert (settings["model"], settings["CHAIRLIFT_API_KEY"]) == ("chairlift:random", "set")


@pytest.mark.full
def test_flags_of_other_servers_keys_and_a_seed_reach_the_server() -> None:
    flags = ("--model", "chairlift:random", "--api-key", "one", "--api-key", "two", "--max-num-seqs", "3")
    more = ("--num-gpu-blocks-override", "128", "--seed", "5", "--enforce-eager", "--swap-space", "4")
    more += ("--tensor-parallel-size", "1")
    body = {"model": "chairlift:random", "prompt": "hi", "max_tokens": 6}
    texts = []
    for _ in range(2):
        with real_server(*flags, *more) as server:
            assert httpx.get(server.url + "/v1/models").status_code == 401
            keys = [{"authorization": f"Bearer {key}"} for key in ("one", "two")]
            assert [httpx.get(server.url + "/v1/models", headers=key).status_code for key in keys] == [200, 200]
            answer = httpx.post(server.url + "/v1/completions", json=body, headers=keys[0], timeout=60)
            texts.append(answer.json()["choices"][0]["text"])
            assert "--swap-space has no effect" in server.log
            assert "--api-key is visible in the list of processes; --key-file and CHAIRLIFT_API_KEY" in server.log
            assert "tensor-parallel-size" not in server.log
    assert texts[0] == texts[1], "the seed of the server repeats a request without one"


def test_a_pipe_in_place_of_the_key_file_is_rejected_and_the_old_keys_stay(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(key_line("k", "alice") + "\n", encoding="utf-8")
    with real_server(*TINY, "chairlift:random", "--key-file", str(file)) as server:
        file.unlink()
        os.mkfifo(file)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "is not a regular file, so it cannot be read again" in server.log)
        assert httpx.get(server.url + "/v1/models", headers={"authorization": "Bearer k"}).status_code == 200
        assert "Traceback" not in server.log and "were read again" not in server.log
