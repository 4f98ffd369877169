"""http_process: a server from its socket to its exit code, with TLS files that are read again.

tests/system/ has faults.
"""

import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from support_process import wait_until
from support_server import ADMIN_KEY, CHAT, HELLO, fake_server, starting_server


def test_it_says_what_it_does_and_leaves_with_zero() -> None:
    with fake_server() as server:
        assert httpx.post(server.url + CHAT, json=HELLO).status_code == 200
        assert server.stop() == 0
    assert [line.split()[0] for line in server.lines] == ["listening", "speculative", "ready", "stopped"]


WITHOUT_TLS_FILES = """
import sys
from pathlib import Path
from chairlift.cli.main import main
from chairlift.web.service import http_process

def remove_files_and_stop(process):
    for file in sys.argv[1:]:
        Path(file).unlink()
    process._stop_requested.set()

http_process._Process._catch_signals = remove_files_and_stop
sys.exit(main(["serve", "chairlift:random", "--port", "0", "--tls-cert", sys.argv[1], "--tls-key", sys.argv[2]]))
"""


@pytest.mark.full
def test_the_tls_files_are_read_once_before_the_model(tmp_path: Path) -> None:
    """Files that a deployment replaces during the start cannot end it: no second read finds others, or none."""
    make_certificate(tmp_path, "first")
    command = [sys.executable, "-c", WITHOUT_TLS_FILES, str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, list(tmp_path.iterdir())) == (0, []), done.stderr
    assert "listening on https://" in done.stderr


def test_a_connection_that_is_kept_does_not_keep_the_server() -> None:
    with fake_server(admin=True) as server, httpx.Client(base_url=server.url) as http:
        assert http.get("/livez").status_code == 200
        with http.stream("GET", "/admin/live", headers={"authorization": f"Bearer {ADMIN_KEY}"}) as response:
            pieces = response.iter_bytes()
            assert b"event: hello" in next(pieces)
            assert server.stop(signal.SIGINT) == 0
            list(pieces)  # raises an error if the response is cut
        assert "Traceback" not in server.log


def test_it_speaks_tls_and_reads_a_new_certificate(tmp_path: Path) -> None:
    make_certificate(tmp_path, "first")
    files = {"certificate": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")}
    with fake_server(tls=files) as server:
        assert server.url.startswith("https://")
        assert name_of(server.port) == "first"
        assert httpx.get(server.url + "/livez", verify=False).status_code == 200
        make_certificate(tmp_path, "second")
        server.process.send_signal(signal.SIGHUP)
        while name_of(server.port) != "second":
            assert server.process.poll() is None
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
            assert b"200" not in client.recv(1000)


@pytest.mark.full
def test_a_certificate_with_the_key_of_another_leaves_the_old_one_at_work(tmp_path: Path) -> None:
    """A certificate loaded without its key would fail every handshake from then on."""
    make_certificate(tmp_path, "first")
    files = {"certificate": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")}
    with fake_server(tls=files) as server:
        key = (tmp_path / "key.pem").read_bytes()
        make_certificate(tmp_path, "second")
        (tmp_path / "key.pem").write_bytes(key)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "the old keys, certificates and limits stay" in server.log)
        for _ in range(3):
            assert name_of(server.port) == "first"
            assert httpx.get(server.url + "/livez", verify=False).status_code == 200


def test_a_certificate_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("nonsense", encoding="utf-8")
    files = {"certificate": str(tmp_path / "cert.pem"), "key": str(tmp_path / "cert.pem")}
    with starting_server(tls=files) as server:
        assert server.wait_for_exit() != 0 and "cert.pem has no certificate in PEM format" in server.log
        assert "listening on" not in server.log


@pytest.mark.share(1)
@pytest.mark.parametrize("content", [None, "", "nonsense"])
def test_a_ca_file_without_certificates_ends_the_start_before_it_listens(tmp_path: Path, content: str | None) -> None:
    make_certificate(tmp_path, "first")
    if content is not None:
        (tmp_path / "ca.pem").write_text(content, encoding="utf-8")
    files = {"certificate": "cert.pem", "key": "key.pem", "client_ca": "ca.pem"}
    with starting_server(tls={name: str(tmp_path / file) for name, file in files.items()}) as server:
        assert server.wait_for_exit() != 0
        reason = "No such file or directory" if content is None else "it has no certificate (PEM)"
        assert f"cannot read the tls_client_ca file {tmp_path / 'ca.pem'}: {reason}" in server.log
        assert "listening on" not in server.log


def make_certificate(folder: Path, name: str) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)


def name_of(port: int) -> str:
    """Return the name in the certificate of a server."""
    certificate = ssl.get_server_certificate(("127.0.0.1", port))
    command = ["openssl", "x509", "-noout", "-subject"]
    result = subprocess.run(command, input=certificate, text=True, check=True, capture_output=True)
    return result.stdout.split("=")[-1].strip()
