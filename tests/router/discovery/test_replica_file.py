"""replica_file.py: YAML and JSON, and errors with file and line."""

import json
from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.discovery import replica_file
from chairlift.router.discovery.replica_file import parse_replica_file
from chairlift.router.endpoint import Endpoint, ReplicaKind
from support_shares import for_each

PATH = Path("replicas.yaml")

YAML = """# two replicas
replicas:
  - http://10.0.0.7:8000
  - url: https://10.0.0.8
    weight: 2
    models: [llama, 007]
    kind: openai
    version: 1.10
    zone: eu-1
"""
EXPECTED = (
    Endpoint(url="http://10.0.0.7:8000"),
    Endpoint(url="https://10.0.0.8", weight=2, models=("llama", "007"), kind=ReplicaKind.OPENAI, version="1.10",
             zone="eu-1"),
)  # fmt: skip


def test_yaml_and_json_and_a_list_alone() -> None:
    assert parse_replica_file(YAML.encode(), PATH) == EXPECTED
    record = {"url": "https://10.0.0.8", "weight": 2, "models": ["llama", "007"], "kind": "openai", "version": "1.10"}
    items = ["http://10.0.0.7:8000", {**record, "zone": "eu-1"}]
    for body in ({"replicas": items}, items):
        assert parse_replica_file(json.dumps(body, indent=1).encode(), PATH) == EXPECTED


@pytest.mark.parametrize("text", ["[]", "replicas: []", '{"replicas": []}'])
def test_no_replicas_are_written_as_an_empty_list(text: str) -> None:
    assert parse_replica_file(text.encode(), PATH) == ()


@for_each(("text", "message"), [
    ("", "replicas.yaml is empty"), ("# nothing\n", "is empty"), ("replicas:", "line 1: a list of replicas is needed"),
    ("a: 1", "line 1: unknown key 'a'; the only key is replicas"), ("7", "line 1: a list of replicas is needed"),
    ("- a\n- b: [", "line 2: it is neither YAML nor JSON"), ("- a\n\t- b", "neither YAML nor JSON"),
    ("- a\n- {url: b,\n   weight: x}", "line 3: weight must be a number, got 'x'"),
    ("- a\n- {url: b,\n   wight: 1}", "line 3: a replica has no field 'wight'; did you mean weight?"),
    ("- a\n- {weight: 1}", "line 2: a replica needs a url"), ("- a\n- [b]", "line 2: a replica is a URL or a mapping"),
    ("- a\n- ftp://b", "line 2: 'ftp://b' is no URL of a replica"), ("- a\n-\n- b", "line 2"),
    ("- a\n- b\n- http://a/", "line 3: http://a is already in line 1; remove one of them"),
    ("- {url: a,\n   url: b}", "line 2: url is given twice"), ("- &x {url: a}\n- *x", "line 2: aliases"),
    ("[[[[[[1]]]]]]", "the nesting is deeper than 5 levels"), ("- {url: a, models: {b: c}}", "models must be a list"),
    ("- {url: a, weight: 1e9}", "weight of http://localhost must be between 0 and 1000"),
    ("- {url: a, zone: null}", "zone must be text"), ("- a\n--- \n- b", "neither YAML nor JSON"),
])  # fmt: skip
def test_errors_name_file_and_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?").replace("[", r"\[")) as error:
        parse_replica_file(text.encode(), PATH)
    assert str(error.value).startswith("replicas.yaml")


def test_bytes_that_are_no_text_and_files_that_are_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="neither YAML nor JSON"):
        parse_replica_file(b"- \xff", PATH)
    monkeypatch.setattr(replica_file, "MAX_FILE_BYTES", 5)
    with pytest.raises(ConfigError, match="more than 5 bytes, the limit"):
        parse_replica_file(b"- abcdef", PATH)
