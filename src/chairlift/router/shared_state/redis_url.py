"""RedisTarget: the server, or the Sentinels that know it, of a `redis://`, `rediss://` or `redis+sentinel://` URL."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from chairlift.core.errors import ConfigError

REDIS_PORT, SENTINEL_PORT = 6379, 26379
FORMS = "redis://host:port/db, rediss://host:port/db or redis+sentinel://host:port,host:port/master-name/db"
_SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")
_OPTION = "shared_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisTarget:
    """Where Redis is.

    Attributes:
        hosts: hosts and ports; one, or those of the Sentinels.
        master_name: name by which the Sentinels know the master; "" without Sentinels.
        db: number of the database.
        username: name of an ACL user; "" for the default user.
        password: its password; "" for none.
        password_file: file whose first line is used instead of `password`.
        sentinel_password_file: file with the password of the Sentinels in its first line; None for none.
        has_tls: whether the connections are encrypted.
    """

    hosts: tuple[tuple[str, int], ...]
    master_name: str = ""
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    password_file: Path | None = None
    sentinel_password_file: Path | None = None
    has_tls: bool = False

    @classmethod
    def parse(
        cls, url: str, *, password_file: Path | None = None, sentinel_password_file: Path | None = None
    ) -> "RedisTarget":  # fmt: skip
        """Return the target of a URL, without reading the files. Raises ConfigError."""
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in _SCHEMES:
            raise ConfigError(f"shared_state {url_without_password(url)!r} must look like {FORMS}", option=_OPTION)
        authority, _, path = rest.partition("/")
        userinfo, _, hosts = authority.rpartition("@")
        username, _, password = userinfo.partition(":")
        is_sentinel = scheme.endswith("+sentinel")
        parts = path.rstrip("/").split("/") if path.rstrip("/") else []
        master_name = parts.pop(0) if is_sentinel and parts else ""
        if sentinel_password_file is not None and not is_sentinel:
            raise ConfigError(
                f"shared_state_sentinel_password_file needs Sentinels, and shared_state {url_without_password(url)!r} "
                "names none; use redis+sentinel://",
                option="shared_state_sentinel_password_file",
            )
        if {"?", "#", "@"} & {*path} or len(parts) > 1 or (is_sentinel and not master_name):
            raise ConfigError(f"shared_state {url_without_password(url)!r} must look like {FORMS}", option=_OPTION)
        target = cls(
            hosts=tuple(_host_and_port(host, url, is_sentinel=is_sentinel) for host in hosts.split(",")),
            master_name=unquote(master_name),
            db=_database(parts[0] if parts else "0", url),
            username=unquote(username),
            password=unquote(password),
            password_file=password_file,
            sentinel_password_file=sentinel_password_file,
            has_tls=scheme.startswith("rediss"),
        )
        if len(target.hosts) > 1 and not is_sentinel:
            raise ConfigError(
                f"shared_state {url_without_password(url)!r} names {len(target.hosts)} servers, the limit is 1 without "
                "Sentinels; use redis+sentinel://",
                option=_OPTION,
            )
        return target

    def read_password(self) -> str:
        """Return the password of Redis, "" for none. Raises ConfigError for a file that cannot be used."""
        if self.password_file is None:
            return self.password
        return _first_line(self.password_file, "shared_state_password_file")

    def read_sentinel_password(self) -> str:
        """Return the password of the Sentinels, "" for none. Raises ConfigError for a file that cannot be used."""
        if self.sentinel_password_file is None:
            return ""
        return _first_line(self.sentinel_password_file, "shared_state_sentinel_password_file")

    @property
    def address(self) -> str:
        """The target without user and password, for logs."""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{hosts}/{self.master_name}/{self.db}" if self.master_name else f"{hosts}/{self.db}"


def url_without_password(url: str) -> str:
    """Return a URL without its user and password, for messages."""
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    if "@" in path:  # a password with an unescaped slash
        return f"{scheme}://..."
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"


def _host_and_port(text: str, url: str, *, is_sentinel: bool) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(SENTINEL_PORT if is_sentinel else REDIS_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"shared_state {url_without_password(url)!r}: {text!r} is no host and port; write host:port, the port from "
            "1 to 65535",
            option=_OPTION,
        )
    return host, int(port)


def _database(text: str, url: str) -> int:
    if not text.isdecimal():
        raise ConfigError(
            f"shared_state {url_without_password(url)!r}: the database must be a number such as 0, got {text!r}",
            option=_OPTION,
        )
    return int(text)


def _first_line(file: Path, option: str) -> str:
    try:
        password = file.read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {option} {file}: {reason}", option=option) from None
    if not password:
        raise ConfigError(f"{option} {file} has no password in its first line", option=option)
    return password
