"""redis_url.py: every form of a URL is read, every other is rejected, and no message has the password."""

from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.shared_state.redis_url import RedisTarget, url_without_password
from support_shares import for_each


@for_each(
    ("url", "target", "address"),
    [
        ("redis://h", RedisTarget(hosts=(("h", 6379),)), "h:6379/0"),
        ("redis://h:7000/3", RedisTarget(hosts=(("h", 7000),), db=3), "h:7000/3"),
        ("redis://h:7000/", RedisTarget(hosts=(("h", 7000),)), "h:7000/0"),
        ("redis://:p%40ss@h", RedisTarget(hosts=(("h", 6379),), password="p@ss"), "h:6379/0"),
        (
            "redis://me:secret@h/1",
            RedisTarget(hosts=(("h", 6379),), db=1, username="me", password="secret"),
            "h:6379/1",
        ),
        ("redis://a@b:secret@h", RedisTarget(hosts=(("h", 6379),), username="a@b", password="secret"), "h:6379/0"),
        ("rediss://[::1]:7000", RedisTarget(hosts=(("::1", 7000),), has_tls=True), "[::1]:7000/0"),
        ("rediss://[::1]", RedisTarget(hosts=(("::1", 6379),), has_tls=True), "[::1]:6379/0"),
        (
            "redis+sentinel://:secret@a:1,b,c:3/fleet/2",
            RedisTarget(hosts=(("a", 1), ("b", 26379), ("c", 3)), master_name="fleet", db=2, password="secret"),
            "a:1,b:26379,c:3/fleet/2",
        ),
        ("redis+sentinel://a/fleet", RedisTarget(hosts=(("a", 26379),), master_name="fleet"), "a:26379/fleet/0"),
    ],
)
def test_a_url_is_read(url: str, target: RedisTarget, address: str) -> None:
    parsed = RedisTarget.parse(url)
    assert parsed == target
    assert parsed.address == address
    assert "secret" not in repr(parsed)


@for_each(
    ("url", "part"),
    [
        ("h:6379", "must look like"),
        ("http://h", "must look like"),
        ("redis://h/1/2", "must look like"),
        ("redis://h/0?db=1", "must look like"),
        ("redis+sentinel://h:1", "must look like"),
        ("redis+sentinel://h:1/fleet/0/1", "must look like"),
        ("redis://:hunter2/x@h", "must look like"),
        ("redis://:hunter2@h/x", "the database must be a number"),
        ("redis://:hunter2@h/-1", "the database must be a number"),
        ("redis://:hunter2@h:0", "no host and port"),
        ("redis://:hunter2@h:65536", "no host and port"),
        ("redis://:hunter2@h:x", "no host and port"),
        ("redis://:hunter2@", "no host and port"),
        ("redis://:hunter2@a:1,b:2/0", "names 2 servers, the limit is 1 without Sentinels"),
        ("redis+sentinel://:hunter2@a:1,,b:2/m", "no host and port"),
    ],
)
def test_another_text_is_rejected_without_its_password(url: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part) as caught:
        RedisTarget.parse(url)
    assert "hunter2" not in caught.value.message
    assert "hunter2" not in url_without_password(url)


def test_the_password_comes_from_the_first_line_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("  s3cret \nnot this\n")
    assert RedisTarget.parse("redis://me:other@h", password_file=file).read_password() == "s3cret"
    target = RedisTarget.parse("redis+sentinel://:other@h/fleet", sentinel_password_file=file)
    assert (target.read_password(), target.read_sentinel_password()) == ("other", "s3cret")
    assert RedisTarget.parse("redis+sentinel://h/fleet").read_sentinel_password() == ""


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
def test_a_password_file_without_a_password_is_rejected(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    target = RedisTarget.parse("redis+sentinel://h/fleet", password_file=file, sentinel_password_file=file)
    with pytest.raises(ConfigError, match=f"shared_state_password_file {file}"):
        target.read_password()
    with pytest.raises(ConfigError, match=f"shared_state_sentinel_password_file {file}"):
        target.read_sentinel_password()


def test_a_sentinel_password_without_sentinels_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"shared_state_sentinel_password_file needs Sentinels.*'redis://h'"):
        RedisTarget.parse("redis://:hunter2@h", sentinel_password_file=Path("file"))
