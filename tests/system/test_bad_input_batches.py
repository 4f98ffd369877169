"""Bad input on /v1/files and /v1/batches: each gets its status in OpenAI's form; the next good request works.

tests/web/batch_api/ has every form and field.
"""

import json
from typing import Any

import httpx
import pytest

from support_bad_input import exchange, rejection_message
from support_server import Server

pytestmark = pytest.mark.usefixtures("good_request_still_works")

FILES, BATCHES = "/v1/files", "/v1/batches"
TYPE = {"content-type": "multipart/form-data; boundary=x"}
FORM = (
    b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n{}\r\n--x--\r\n'
)
BATCH = {"input_file_id": "file-0", "endpoint": "/v1/completions", "completion_window": "24h"}

FORMS: dict[str, tuple[bytes, dict[str, str], int]] = {
    "JSON": (b"{}", {"content-type": "application/json"}, 415), "no type": (FORM, {}, 415),
    "gzip": (FORM, {**TYPE, "content-encoding": "gzip"}, 415),
    "no boundary": (FORM, {"content-type": "multipart/form-data"}, 400), "empty": (b"", TYPE, 400),
    "cut": (FORM[:-9], TYPE, 400), "no purpose": (FORM[FORM.index(b"--x", 3) :], TYPE, 400),
    "a wrong purpose": (FORM.replace(b"batch", b"x"), TYPE, 400), "no file": (FORM.replace(b"file", b"x"), TYPE, 400),
    "an empty file": (FORM.replace(b"{}", b""), TYPE, 400), "noise": (bytes(range(256)) * 50, TYPE, 400),
    "lines before the form": (b"\n" * 2_000_000, TYPE, 400),
    "base64": (FORM.replace(b"\r\n\r\n{}", b"\r\ncontent-transfer-encoding: base64\r\n\r\ne30="), TYPE, 400),
    "a control character": (FORM.replace(b'"a"', b'"a\x07"'), TYPE, 400),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_forms_that_are_none(http: httpx.Client, name: str) -> None:
    body, headers, status = FORMS[name]
    rejection_message(http.post(FILES, content=body, headers=headers), status)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"input_file_id": "\xff"}', b"[" * 100_000])
def test_batches_that_are_no_json_object(http: httpx.Client, body: bytes) -> None:
    rejection_message(http.post(BATCHES, content=body, headers={"content-type": "application/json"}), 400)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 404), ({"input_file_id": None}, 400), ({"endpoint": "/admin/drain"}, 400), ({"endpoint": BATCHES}, 400),
        ({"completion_window": "1 year"}, 400), ({"metadata": {"a": 1}}, 400),
    ],
)  # fmt: skip
def test_fields_of_a_batch(http: httpx.Client, fields: dict[str, Any], status: int) -> None:
    rejection_message(http.post(BATCHES, json=BATCH | fields), status)


@pytest.mark.parametrize("entry", ["x", "..%2F..%2Fetc%2Fpasswd", "%00", "x" * 2000])
def test_ids_that_name_nothing(http: httpx.Client, entry: str) -> None:
    for path in (f"{FILES}/{entry}", f"{FILES}/{entry}/content", f"{BATCHES}/{entry}"):
        rejection_message(http.get(path), 404)
    rejection_message(http.delete(f"{FILES}/{entry}"), 404)
    rejection_message(http.post(f"{BATCHES}/{entry}/cancel"), 404)


def test_a_body_that_is_too_large_or_does_not_come(server: Server) -> None:
    head = b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-type: multipart/form-data; boundary=x\r\n"
    assert exchange(server, head + b"content-length: 300000000\r\n\r\n--x").startswith(b"HTTP/1.1 413")
    assert exchange(server, head + b"content-length: 3000\r\n\r\n--x").startswith(b"HTTP/1.1 408")


def test_a_good_file_beside_them(http: httpx.Client) -> None:
    stored = http.post(FILES, content=FORM, headers=TYPE)
    assert stored.status_code == 200, stored.text
    created = http.post(BATCHES, content=json.dumps(BATCH | {"input_file_id": stored.json()["id"]}).encode())
    assert created.status_code == 200 and created.json()["status"] == "validating", created.text
    assert http.delete(f"{FILES}/{stored.json()['id']}").json()["deleted"] is True
