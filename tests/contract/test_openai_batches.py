"""The openai client uploads files and runs batches, on a server and through a router; its types are held strictly."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch, FileDeleted, FileObject
from pydantic import BaseModel

from support_router_process import direct_or_routed
from support_server import Server, real_server

MODEL = "chairlift:demo"
NEW_STATUSES = ("completed", "failed", "cancelled", "expired")


@pytest.fixture(scope="module")
def replica() -> Iterator[Server]:
    with real_server("--dtype", "float32", "--num-blocks", "1024", "--max-file-bytes", "1MB") as running:
        yield running


@pytest.fixture(scope="module", params=["direct", "router"])
def client(request: pytest.FixtureRequest, replica: Server) -> Iterator[openai.OpenAI]:
    with direct_or_routed(request.param, replica, options=("--max-file-bytes", "1MB")) as server:
        yield openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)


def check(kind: type[BaseModel], result: BaseModel) -> None:
    """Check a result against its type, strictly: it has all that the type says, and nothing else."""
    kind.model_validate_json(json.dumps(result.to_dict()), strict=True)
    assert not result.model_extra


def batch_file(path: Path, url: str, *bodies: dict[str, Any]) -> Path:
    lines = [
        {"custom_id": f"request-{number}", "method": "POST", "url": url, "body": {"model": MODEL, **body}}
        for number, body in enumerate(bodies)
    ]
    file = path / "requests.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def ended(client: openai.OpenAI, batch: Batch) -> Batch:
    until = time.monotonic() + 60
    while batch.status not in NEW_STATUSES:
        assert time.monotonic() < until, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
        check(Batch, batch)
    return batch


def lines_of(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    lines = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    for line in lines:
        assert list(line) == ["id", "custom_id", "response", "error"]
    return {line["custom_id"]: line for line in lines}


ASK = [{"role": "user", "content": "What is the capital of France?"}]
ENDPOINTS: list[tuple[Any, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": ASK, "max_tokens": 5, "temperature": 0}),
    ("/v1/completions", {"prompt": "The capital of France is", "max_tokens": 5, "temperature": 0}),
    ("/v1/embeddings", {"input": "Paris"}),
    ("/v1/responses", {"input": "What is the capital of France?", "max_output_tokens": 5}),
]


@pytest.mark.share(1)
@pytest.mark.parametrize(("endpoint", "body"), ENDPOINTS, ids=[each[0] for each in ENDPOINTS])
def test_a_batch(client: openai.OpenAI, tmp_path: Path, endpoint: Any, body: dict[str, Any]) -> None:
    file = client.files.create(file=batch_file(tmp_path, endpoint, body, body, {}), purpose="batch")
    check(FileObject, file)
    assert (file.filename, file.purpose, file.status) == ("requests.jsonl", "batch", "processed")
    created = client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"project": "a"}
    )
    check(Batch, created)
    batch = ended(client, created)
    assert batch.status == "completed" and batch.metadata == {"project": "a"} and batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 3, "completed": 2, "failed": 1}
    outputs, errors = lines_of(client, batch.output_file_id), lines_of(client, batch.error_file_id)
    assert set(outputs) == {"request-0", "request-1"} and set(errors) == {"request-2"}
    assert outputs["request-0"]["response"]["status_code"] == 200
    assert errors["request-2"]["response"]["status_code"] == 400


def test_files_are_listed_and_deleted(client: openai.OpenAI) -> None:
    ids = [client.files.create(file=(f"{number}.jsonl", b"x"), purpose="user_data").id for number in range(3)]
    listed = [each.id for each in client.files.list(purpose="user_data", limit=2)]  # two pages
    assert listed == ids[::-1] and [each.id for each in client.files.list(purpose="user_data", order="asc")] == ids
    check(FileObject, client.files.retrieve(ids[0]))
    assert client.files.content(ids[0]).read() == b"x"
    for file_id in ids:
        check(FileDeleted, client.files.delete(file_id))
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(ids[0])


def test_invalid_lines_are_named(client: openai.OpenAI, tmp_path: Path) -> None:
    file = client.files.create(file=batch_file(tmp_path, "/v1/completions", {}, {"stream": True}), purpose="batch")
    batch = ended(client, client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    ))  # fmt: skip
    assert batch.status == "failed" and batch.errors is not None and batch.errors.data is not None
    assert [error.line for error in batch.errors.data] == [1, 2]
    assert all(error.message is not None and "/v1/chat/completions" in error.message for error in batch.errors.data)


def test_a_batch_is_cancelled_and_listed(client: openai.OpenAI, tmp_path: Path) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True}
    file = client.files.create(file=batch_file(tmp_path, "/v1/completions", *[body] * 200), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    check(Batch, client.batches.cancel(batch.id))
    assert ended(client, batch).status == "cancelled"
    assert next(iter(client.batches.list(limit=1))).id == batch.id
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_0")


@pytest.mark.parametrize(
    ("kind", "file", "purpose"),
    [
        (openai.BadRequestError, b"", "batch"), (openai.BadRequestError, b"x", "other"),
        (openai.APIStatusError, b"x" * 1_000_001, "batch"),
    ],
)  # fmt: skip
def test_errors_are_those_of_the_client(client: openai.OpenAI, kind: Any, file: bytes, purpose: Any) -> None:
    with pytest.raises(kind) as error:
        client.files.create(file=("a.jsonl", file), purpose=purpose)
    assert error.value.status_code == (413 if len(file) > 1 else 400) and error.value.body["message"]
