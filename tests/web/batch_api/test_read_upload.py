"""read_upload: forms of real clients in any pieces give the file byte for byte; other bodies store nothing."""

import asyncio
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from chairlift.core.errors import (
    BodyTooLarge,
    ChairliftError,
    InvalidRequest,
    MalformedRequest,
    Unavailable,
    UnsupportedMediaType,
)
from chairlift.web.batch_api import read_upload as module
from chairlift.web.batch_api.file_store import FileStore, StoredFile
from chairlift.web.batch_api.files_config import FilesConfig
from chairlift.web.batch_api.read_upload import read_upload
from chairlift.web.body import ClientGone

BATCH = {"purpose": "batch"}
PURPOSE = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FILE = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nabc\r\n'
TYPE = "multipart/form-data; boundary=x"


def form(content: bytes, name: str = "a.jsonl", data: dict[str, str] | None = None) -> tuple[bytes, str]:
    """Return the body and the content type of a form, as httpx and the openai client send it."""
    request = httpx.Request("POST", "http://x", files={"file": (name, content)}, data=BATCH if data is None else data)
    return request.read(), request.headers["content-type"]


def upload(
    store: FileStore, body: bytes | Sequence[bytes], content_type: str = TYPE, *, is_strict: bool = False,
    is_cut: bool = False, headers: Sequence[tuple[bytes, bytes]] = (), max_file_bytes: int = 10**6,
) -> tuple[StoredFile, Any]:  # fmt: skip
    pieces = [body] if isinstance(body, bytes) else body
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": each, "more_body": True} for each in pieces]
    messages.append({"type": "http.disconnect"} if is_cut else {"type": "http.request", "body": b""})

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    scope = {"headers": [(b"content-type", content_type.encode("latin-1")), *headers]}
    return asyncio.run(
        read_upload(scope, receive, store, "alice", max_file_bytes=max_file_bytes, seconds=5.0, is_strict=is_strict)
    )


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "files", FilesConfig(max_file_bytes=10**6))


@pytest.mark.parametrize("seed", range(20))
def test_a_file_arrives_byte_for_byte_in_any_pieces(store: FileStore, seed: int) -> None:
    rng = random.Random(seed)
    parts = [
        b"\r\n",
        b"--",
        b"\n",
        b"--x",
        b"\r\n--",
        b"\r",
        rng.randbytes(rng.randrange(3000)),
        b"\x00",
        b'{"a": 1}\r\n',
    ]
    content = b"".join(rng.choices(parts, k=rng.randrange(1, 60))) or b"x"
    body, content_type = form(content)
    cuts = [*sorted(rng.choices(range(len(body)), k=rng.randrange(8))), len(body)]
    pieces = [body[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]
    stored, headers = upload(store, pieces, content_type)
    assert store.path(stored).read_bytes() == content and stored.num_bytes == len(content) and headers == []
    assert (stored.tenant, stored.file_name, stored.purpose) == ("alice", "a.jsonl", "batch")


def test_large_files_go_to_the_disk_piece_by_piece(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 1000)
    content = random.Random(1).randbytes(50_000)
    body, content_type = form(content)
    stored, _ = upload(store, [body[index : index + 700] for index in range(0, len(body), 700)], content_type)
    assert store.path(stored).read_bytes() == content


def test_the_fields_come_in_any_order_and_others_are_named(store: FileStore) -> None:
    more = b'--x\r\ncontent-disposition: form-data; name="expires_after[seconds]"\r\n\r\n3600\r\n'
    for body in (PURPOSE + FILE + more, more + FILE + PURPOSE):
        stored, headers = upload(store, body + b"--x--\r\n")
        assert stored.num_bytes == 3 and headers == [(b"x-ignored-parameters", b"expires_after[seconds]")]
    with pytest.raises(InvalidRequest, match="has no effect"):
        upload(store, more + FILE + PURPOSE + b"--x--\r\n", is_strict=True)
    assert len(store.of_tenant("alice")) == 2
    unnamed = FILE.replace(b'; filename="a"', b"")
    assert upload(store, unnamed + PURPOSE + b"--x--")[0].file_name == "file"
    assert upload(store, FILE + PURPOSE + b"--x--\r\nwhat follows the form")[0].num_bytes == 3
    plain = FILE.replace(b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: binary\r\n\r\n")
    assert upload(store, plain + PURPOSE + b"--x--")[0].num_bytes == 3
    tricked = FILE.replace(b'"a"', b'"../../etc/cron.d/x"')
    assert upload(store, tricked + PURPOSE + b"--x--")[0].file_name == "x"


BAD: dict[str, tuple[bytes, str, type[ChairliftError], str]] = {
    "JSON": (b"{}", "application/json", UnsupportedMediaType, "must be multipart/form-data, got application/json"),
    "no type": (b"{}", "", UnsupportedMediaType, "must be multipart/form-data"),
    "no boundary": (FILE, "multipart/form-data", MalformedRequest, "boundary"),
    "long boundary": (FILE, f"multipart/form-data; boundary={'x' * 99}", MalformedRequest, "boundary"),
    "empty": (b"", TYPE, MalformedRequest, "not a valid multipart"),
    "another boundary": (FILE, TYPE + "y", MalformedRequest, "not a valid multipart"),
    "cut in the file": (PURPOSE + FILE[:-4], TYPE, MalformedRequest, "not a valid multipart"),
    "cut behind the file": (PURPOSE + FILE, TYPE, MalformedRequest, "not a valid multipart"),
    "cut in the headers": (FILE[:30], TYPE, MalformedRequest, "form"),
    "no end of the headers": (b"--x\r\n" + b"a" * 50_000, TYPE, MalformedRequest, "a line of more than"),
    "no file": (PURPOSE + b"--x--\r\n", TYPE, InvalidRequest, "file is missing"),
    "no fields": (b"--x--\r\n", TYPE, InvalidRequest, "purpose is missing"),
    "no purpose": (FILE + b"--x--\r\n", TYPE, InvalidRequest, "purpose is missing"),
    "a wrong purpose": (FILE + PURPOSE.replace(b"batch", b"x") + b"--x--\r\n", TYPE, InvalidRequest, "got 'x'"),
    "a purpose that is no UTF-8": (
        FILE + PURPOSE.replace(b"batch", b"\xff") + b"--x--\r\n", TYPE, MalformedRequest, "utf-8"
    ),
    "a long purpose": (PURPOSE.replace(b"batch", b"x" * 5000) + b"--x--\r\n", TYPE, InvalidRequest, "1024 bytes"),
    "two files": (PURPOSE + FILE + FILE + b"--x--\r\n", TYPE, InvalidRequest, "several fields"),
    "an empty file": (PURPOSE + FILE.replace(b"abc", b"") + b"--x--\r\n", TYPE, InvalidRequest, "file is empty"),
    "a field without a name": (
        b"--x\r\ncontent-disposition: form-data\r\n\r\na\r\n--x--\r\n", TYPE, MalformedRequest, "without a name"
    ),
    "a control character in a name": (
        b'--x\r\ncontent-disposition: form-data; name="a\x07"\r\n\r\na\r\n--x--\r\n', TYPE, MalformedRequest,
        "Invalid HTTP header",
    ),
    "headers that are none": (b"--x\r\nno header\r\n\r\na\r\n--x--\r\n", TYPE, MalformedRequest, "form-data"),
    "many headers": (b"--x\r\n" + b"a: b\r\n" * 500 + b"\r\na\r\n--x--\r\n", TYPE, MalformedRequest, "form-data"),
    "a long charset": (
        b'--x\r\ncontent-disposition: form-data; name="_charset_"\r\n\r\n' + b"x" * 40 + b"\r\n--x--\r\n", TYPE,
        MalformedRequest, "charset",
    ),
    "a form in a form": (
        b"--x\r\ncontent-type: multipart/mixed; boundary=y\r\n\r\n--y--\r\n--x--\r\n", TYPE, MalformedRequest, "within"
    ),
    "lines before the form": (b"\n" * 300_000, TYPE, MalformedRequest, "more than 1024 lines besides its file"),
    "a preamble": ((b"x" * 9000 + b"\n") * 9, TYPE, MalformedRequest, "more than 65536 bytes besides its file"),
    "base64": (
        PURPOSE + FILE.replace(b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: BASE64\r\n\r\n") + b"--x--\r\n", TYPE,
        InvalidRequest, "file must be sent as it is, got Content-Transfer-Encoding 'base64'",
    ),
    "a quoted field": (
        PURPOSE.replace(b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n") + FILE + b"--x--\r\n",
        TYPE, InvalidRequest, "purpose must be sent as it is",
    ),
    "many fields": (
        b"".join(PURPOSE.replace(b"purpose", b"p%d" % index) for index in range(40)) + b"--x--\r\n", TYPE,
        MalformedRequest, "more than 32 fields",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_forms_store_nothing(store: FileStore, tmp_path: Path, name: str) -> None:
    body, content_type, kind, message = BAD[name]
    with pytest.raises(kind, match=message) as error:
        upload(store, body, content_type)
    assert len(error.value.message) < 400 and type(error.value) is not Unavailable
    assert os.listdir(tmp_path / "files") == [] and store._usage.num_bytes() == 0


def test_a_file_above_the_limit_is_not_read_to_its_end(store: FileStore, tmp_path: Path) -> None:
    length = [(b"content-length", b"99999999")]
    with pytest.raises(BodyTooLarge, match="the body has 99999999 bytes, the limit of a file is 1000000"):
        upload(store, FILE, headers=length)
    body, content_type = form(b"x" * 1_000_001)
    with pytest.raises(BodyTooLarge, match="the limit is 1000000"):
        upload(store, [body[index : index + 65_536] for index in range(0, len(body), 65_536)], content_type)
    with pytest.raises(UnsupportedMediaType, match="must not be compressed"):
        upload(store, FILE, headers=[(b"content-encoding", b"gzip")])
    assert os.listdir(tmp_path / "files") == []


def test_a_client_that_leaves_stores_nothing(store: FileStore, tmp_path: Path) -> None:
    with pytest.raises(ClientGone):
        upload(store, PURPOSE + FILE[:-2], is_cut=True)
    assert os.listdir(tmp_path / "files") == [] and store._usage.num_bytes() == 0
