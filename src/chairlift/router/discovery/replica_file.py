"""parse_replica_file: the replicas of a YAML or JSON file; errors name file and line.

replicas:
  - http://10.0.0.7:8000
  - {url: "http://10.0.0.8:8000", weight: 2, models: [llama], zone: eu-1}
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from chairlift.core.errors import ConfigError
from chairlift.router.discovery.endpoint_parser import check_names, parse_endpoint
from chairlift.router.endpoint import Endpoint

MAX_FILE_BYTES = 2**20
MAX_DEPTH = 5
"""Deepest nesting: the file's mapping, its list, a replica, its models, a name."""

KEY = "replicas"


def parse_replica_file(data: bytes, path: Path) -> tuple[Endpoint, ...]:
    """Return the endpoints of a file's content, in its order.

    The file is a list of replicas, or a mapping with such a list as `replicas`. Raises ConfigError.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} has more than {MAX_FILE_BYTES} bytes, the limit")
    try:
        root = _bounded_root(data, path)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{line}: it is neither YAML nor JSON: {error.problem or error.context}") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{path}: it is neither YAML nor JSON: {str(error)[:200]}") from None
    lines: dict[str, int] = {}
    endpoints = []
    for node in _items(root, path):
        endpoint = _endpoint(node, path)
        if endpoint.url in lines:
            raise _problem(path, node, f"{endpoint.url} is already in line {lines[endpoint.url]}; remove one of them")
        lines[endpoint.url] = node.start_mark.line + 1
        endpoints.append(endpoint)
    return tuple(endpoints)


def _bounded_root(data: bytes, path: Path) -> yaml.Node:
    """Return the file's node, with no alias and no deep nesting. Raises ConfigError and YAMLError."""
    depth = 0
    for event in yaml.parse(data, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise _problem(path, event, "aliases (*) are not supported; write the value again")
        if depth > MAX_DEPTH:
            raise _problem(path, event, f"the nesting is deeper than {MAX_DEPTH} levels, the limit")
    root = yaml.compose(data, Loader=yaml.SafeLoader)
    if root is None:
        raise ConfigError(f"{path} is empty; a file without replicas holds [] or replicas: []")
    return root


def _items(root: yaml.Node, path: Path) -> Iterator[yaml.Node]:
    """Yield the node of each replica. Raises ConfigError."""
    if isinstance(root, yaml.MappingNode):
        for key, value in root.value:
            if key.value != KEY:
                raise _problem(path, key, f"unknown key {str(key.value)[:80]!r}; the only key is {KEY}")
            root = value
    if not isinstance(root, yaml.SequenceNode):
        raise _problem(path, root, f"a list of replicas is needed, as in {KEY}: [http://10.0.0.7:8000]")
    yield from root.value


def _endpoint(node: yaml.Node, path: Path) -> Endpoint:
    """Return the endpoint of a replica's node. Raises ConfigError."""
    where = node
    try:
        if isinstance(node, yaml.ScalarNode):
            return parse_endpoint({"url": node.value})
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError("a replica is a URL or a mapping with a url")
        fields: dict[str, Any] = {}
        for key, value in node.value:
            where = key
            check_names({key.value: value})
            if key.value in fields:
                raise ConfigError(f"{key.value} is given twice; remove one of them")
            fields[key.value] = _plain(value)
            parse_endpoint({"url": "http://localhost", key.value: fields[key.value]})  # so that the line is the field's
        where = node
        return parse_endpoint(fields)
    except ConfigError as error:
        raise _problem(path, where, str(error)) from None


def _plain(node: yaml.Node) -> Any:
    """Return a scalar's text, or a list of texts; another value as None, which no field accepts."""
    if isinstance(node, yaml.ScalarNode):
        return None if node.tag == "tag:yaml.org,2002:null" else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_plain(each) for each in node.value]
    return None


def _problem(path: Path, node: Any, message: str) -> ConfigError:
    return ConfigError(f"{path} line {node.start_mark.line + 1}: {message}")
