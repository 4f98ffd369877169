"""A wheel has all that a server needs: it serves the web page, the demo model and its documentation."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from support_server import real_server

ROOT = Path(__file__).parents[2]
MAX_WHEEL_BYTES = 10_000_000


def build_wheel(folder: Path) -> Path:
    """Build a wheel without native kernels, which need a minute of compilation."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT, check=True,
        capture_output=True, env={**os.environ, "CHAIRLIFT_BUILD_KERNELS": "none"},
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.full
def test_a_wheel_serves_the_page_and_the_demo_model(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path / "wheel")
    assert wheel.stat().st_size <= MAX_WHEEL_BYTES
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    package = installed / "chairlift"
    page = package / "ui" / "static"
    files = [each for each in page.rglob("*") if each.is_file() and each.name != "index.html"]
    assert len(files) > 20
    path = {"PYTHONPATH": str(installed)}
    where = subprocess.run(
        [sys.executable, "-c", "import chairlift; print(chairlift.__file__)"], cwd=ROOT, env={**os.environ, **path},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert Path(where.stdout.strip()).parent == package
    with real_server("--dtype", "float32", **path) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        assert "<title>Chairlift" in http.get("/").raise_for_status().text
        for file in files:
            sent = http.get(f"/ui/{file.relative_to(page)}").raise_for_status()
            assert sent.content == file.read_bytes()
        body = {"model": "chairlift:demo", "prompt": "The capital", "max_tokens": 4, "temperature": 0}
        assert http.post("/v1/completions", json=body).raise_for_status().json()["usage"]["completion_tokens"] == 4
