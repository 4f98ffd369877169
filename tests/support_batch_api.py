"""Batch files for tests of /v1/files and /v1/batches, and a client that uploads them and waits for batches."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from chairlift.core.errors import ModelNotFound
from chairlift.web.batch_api.batch_models import BatchModels
from support_server import MODEL

COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/completions": {"prompt": "lift", "max_tokens": 3},
    "/v1/embeddings": {"input": "lift"},
    "/v1/responses": {"input": "hello", "max_output_tokens": 3},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
}
"""Endpoint of a batch -> a body without the model."""


def batch_line(custom_id: str, url: str = COMPLETIONS, **body: Any) -> bytes:
    """Return a line of a batch file, by default a completion of four tokens."""
    body = {"model": MODEL, "prompt": "lift", "max_tokens": 4, "seed": 3} | body
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}).encode() + b"\n"


def batch_lines(count: int, **body: Any) -> bytes:
    """Return a batch file of completions whose names are r0, r1 and so on."""
    return b"".join(batch_line(f"r{number}", **body) for number in range(count))


@dataclass
class ScriptedRoom:
    """A Room that a test opens and closes; `unstarted` has what it was asked for, `num_looks` counts is_ready()."""

    is_open: bool = True
    is_serving: bool = True
    unstarted: list[int] = field(default_factory=list)
    num_looks: int = 0

    def is_ready(self) -> bool:
        self.num_looks += 1
        return self.is_serving

    def has_room(self, num_unstarted: int, num_unadmitted: int) -> bool:
        assert num_unstarted >= num_unadmitted
        self.unstarted.append(num_unstarted)
        return self.is_open


@dataclass
class ScriptedModels:
    """The models of a service that a test changes: each name -> the served model that it means."""

    names: dict[str, str] = field(default_factory=lambda: {"": MODEL, MODEL: MODEL})
    fingerprint: str = "f1"

    def served(self) -> BatchModels:
        return BatchModels(self.resolve, lambda: self.fingerprint)

    def resolve(self, name: str) -> str:
        if name not in self.names:
            raise ModelNotFound(name, ", ".join(self.names))
        return self.names[name]


@dataclass
class BatchClient:
    """Calls the routes of files and batches; `key` is sent as a bearer token."""

    http: httpx.AsyncClient
    key: str = ""

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request."""
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        return await self.http.request(method, path, headers=headers | options.pop("headers", {}), **options)

    async def upload(self, content: bytes, name: str = "batch.jsonl", purpose: str = "batch") -> str:
        """Upload a file; returns its id."""
        response = await self.call("POST", "/v1/files", files={"file": (name, content)}, data={"purpose": purpose})
        assert response.status_code == 200, response.text
        result: str = response.json()["id"]
        return result

    async def create(self, content: bytes, endpoint: str = COMPLETIONS, **fields: Any) -> str:
        """Upload a file and begin a batch with it; returns the id of the batch."""
        body = {"input_file_id": await self.upload(content), "endpoint": endpoint, "completion_window": "24h"} | fields
        response = await self.call("POST", "/v1/batches", json=body)
        assert response.status_code == 200, response.text
        result: str = response.json()["id"]
        return result

    async def batch(self, batch_id: str) -> dict[str, Any]:
        """Return a batch."""
        response = await self.call("GET", f"/v1/batches/{batch_id}")
        assert response.status_code == 200, response.text
        result: dict[str, Any] = response.json()
        return result

    async def wait(self, batch_id: str, *statuses: str) -> dict[str, Any]:
        """Return a batch once it has one of the statuses, by default a final one."""
        while True:
            batch = await self.batch(batch_id)
            if batch["status"] in (statuses or ("completed", "failed", "expired", "cancelled")):
                return batch
            await asyncio.sleep(0.01)

    async def entries(self, file_id: str | None) -> dict[str, Any]:
        """Return the lines of an output by the names of their requests, none for None; no name comes twice."""
        if file_id is None:
            return {}
        response = await self.call("GET", f"/v1/files/{file_id}/content")
        assert response.status_code == 200, response.text
        entries = [json.loads(line) for line in response.content.splitlines()]
        result = {entry["custom_id"]: entry for entry in entries}
        assert len(result) == len(entries)
        return result
