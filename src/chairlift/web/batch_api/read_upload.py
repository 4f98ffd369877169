"""read_upload: reads a multipart form with a file, which goes to the disk as it comes."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from chairlift.core.errors import BodyTooLarge, InvalidRequest, MalformedRequest, UnsupportedMediaType
from chairlift.core.validation import invalid_param
from chairlift.protocol.batches.file_fields import FILE_FIELDS, PURPOSES
from chairlift.protocol.request_fields import Effect
from chairlift.web.batch_api.body_stream import BodyStream
from chairlift.web.batch_api.file_store import FileStore, NewFile, StoredFile
from chairlift.web.body import Receive, Scope, header
from chairlift.web.error_responses import Header
from chairlift.web.ignored_fields import ignored_fields_header

FORM_TYPE = "multipart/form-data"
MAX_FORM_BYTES = 65_536
"""Bytes of a form in addition to those of its file."""

MAX_VALUE_BYTES = 1024
MAX_PARTS = 32
MAX_SHOWN_CHARS = 200
PLAIN_ENCODINGS = frozenset({"binary", "8bit", "7bit"})
"""Transfer encodings of a part whose bytes are those of the file; forms of HTTP have no others (RFC 7578, 4.7)."""

PIECE_BYTES = 262_144
"""Bytes that are written at once, by a thread."""


async def read_upload(
    scope: Scope, receive: Receive, store: FileStore, tenant: str, *, max_file_bytes: int, seconds: float,
    is_strict: bool = False,
) -> tuple[StoredFile, list[Header]]:  # fmt: skip
    """Store the file of a form; returns it and the header that names the fields without effect.

    A megabyte of the body, or its end, must arrive within `seconds`; with `is_strict` fields without effect are
    rejected.

    Raises UnsupportedMediaType for another body than a form, MalformedRequest, InvalidRequest, BodyTooLarge,
    BodyTimeout, ClientGone, and Unavailable where the file cannot be written. Then nothing is stored.
    """
    content_type = _form_type(scope)
    length = header(scope, b"content-length") or b""
    if length.isdigit() and int(length[:20]) > max_file_bytes + MAX_FORM_BYTES:
        raise BodyTooLarge(f"the body has {length[:20].decode()} bytes, the limit of a file is {max_file_bytes}")
    store.check_room(tenant)
    stream = BodyStream(
        receive, max_bytes=max_file_bytes + MAX_FORM_BYTES, max_line_bytes=MAX_FORM_BYTES, seconds=seconds
    )  # fmt: skip
    try:
        with store.begin(tenant) as new_file:
            form = _Form(aiohttp.MultipartReader({"Content-Type": content_type}, cast("Any", stream)), new_file)
            await form.read()
            while await stream.read(PIECE_BYTES):  # what follows the form has no meaning
                pass
            purpose, ignored = _check(form.values)
            if form.file_name is None:
                raise invalid_param("file", "is missing")
            if new_file.num_bytes == 0:
                raise invalid_param("file", "is empty")
            headers = ignored_fields_header(ignored, is_strict=is_strict)
            return await asyncio.to_thread(new_file.commit, form.file_name, purpose), headers
    except (ValueError, LookupError, AssertionError, RuntimeError, HttpProcessingError) as error:
        reason = error.message if isinstance(error, HttpProcessingError) else str(error)
        shown = "".join(char if char.isprintable() else " " for char in reason[:MAX_SHOWN_CHARS])
        raise MalformedRequest(f"the body is not a valid {FORM_TYPE}: {shown}") from None


class _Form:
    """The parts of a form.

    Attributes:
        values: name of each field -> its text.
        file_name: the client's name of the file; None until its part has come.
    """

    def __init__(self, reader: aiohttp.MultipartReader, new_file: NewFile) -> None:
        self._reader, self._new_file = reader, new_file
        self.values: dict[str, str] = {}
        self.file_name: str | None = None

    async def read(self) -> None:
        """Read every part up to the end of the form. Raises what is wrong with it."""
        num_parts = 0
        while (part := await self._reader.next()) is not None:
            num_parts += 1
            if num_parts > MAX_PARTS:
                raise MalformedRequest(f"the form has more than {MAX_PARTS} fields, which is the limit")
            if not isinstance(part, aiohttp.BodyPartReader):
                raise MalformedRequest("the form has a multipart body within a field")
            if part.name is None:
                raise MalformedRequest("the form has a field without a name")
            _check_encoding(part)
            if part.name != "file":
                self.values[part.name] = await _text(part)
            elif self.file_name is not None:
                raise InvalidRequest("the form has several fields `file`; upload one file at a time", param="file")
            else:
                self.file_name = part.filename or ""
                await self._write(part)

    async def _write(self, part: aiohttp.BodyPartReader) -> None:
        pieces: list[bytes] = []
        size = 0
        while not part.at_eof():
            pieces.append(bytes(await part.read_chunk(PIECE_BYTES)))
            size += len(pieces[-1])
            if size >= PIECE_BYTES:
                await asyncio.to_thread(self._new_file.write, b"".join(pieces))
                pieces, size = [], 0
        if size:
            await asyncio.to_thread(self._new_file.write, b"".join(pieces))


def _check_encoding(part: aiohttp.BodyPartReader) -> None:
    encoding = part.headers.get("content-transfer-encoding", "binary").strip().lower()
    if encoding not in PLAIN_ENCODINGS:
        raise invalid_param(
            str(part.name)[:40], f"must be sent as it is, got Content-Transfer-Encoding {encoding[:40]!r}"
        )


async def _text(part: aiohttp.BodyPartReader) -> str:
    value = b""
    while not part.at_eof():
        value += bytes(await part.read_chunk(MAX_VALUE_BYTES))
        if len(value) > MAX_VALUE_BYTES:
            raise invalid_param(str(part.name)[:40], f"has more than {MAX_VALUE_BYTES} bytes, which is the limit")
    return value.decode()


def _form_type(scope: Scope) -> str:
    content_type = (header(scope, b"content-type") or b"").decode("latin-1")
    kind = content_type.partition(";")[0].strip().lower()
    if kind != FORM_TYPE:
        raise UnsupportedMediaType(f"the content type must be {FORM_TYPE}, got {kind[:80]}")
    encoding = (header(scope, b"content-encoding") or b"identity").strip().lower().decode("latin-1")
    if encoding != "identity":
        raise UnsupportedMediaType(f"the body must not be compressed, got content encoding {encoding[:80]}")
    return content_type


def _check(values: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the purpose of a file, and the names of the fields without effect."""
    if "purpose" not in values:
        raise invalid_param("purpose", "is missing")
    if (purpose := values["purpose"]) not in PURPOSES:
        raise invalid_param("purpose", f"must be one of {', '.join(PURPOSES)}, got {purpose[:40]!r}")
    used = {name for name, field in FILE_FIELDS.items() if field.effect is Effect.USED}
    return purpose, tuple(sorted(name for name in values if name not in used))
