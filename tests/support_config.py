"""make_server_config: a server's config from options of any part, by their names."""

from dataclasses import fields
from typing import Any

from chairlift.server.config import ServerConfig
from chairlift.web.service.http_config import HttpConfig

HTTP_FIELDS = frozenset(each.name for each in fields(HttpConfig))


def make_server_config(*names: str, **options: Any) -> ServerConfig:
    """Return the config of a server with these model names; `options` may be fields of ServerConfig and HttpConfig."""
    http = {name: options.pop(name) for name in HTTP_FIELDS & options.keys()}
    return ServerConfig(served_names=names, http=HttpConfig(**http), **options)
