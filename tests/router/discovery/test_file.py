"""FileSource: a file that changes, is replaced, is half written, or is missing."""

import asyncio
import os
from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.router.discovery import file as module
from chairlift.router.discovery.file import FileSource
from support_discovery import urls, watching


def test_a_file_that_cannot_be_read_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.yaml: No such file"):
        FileSource(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: b", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.yaml line 1: unknown key 'a'"):
        FileSource(tmp_path / "bad.yaml")


def test_changes_of_the_content_and_replaced_files_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.01)
    file = tmp_path / "replicas.yaml"
    file.write_text("- a\n", encoding="utf-8")

    async def scenario() -> None:
        async with watching(FileSource(file, poll_seconds=0.01)) as reader:
            assert urls(await reader.next()) == ["http://a"]
            file.write_text("- a\n- b\n", encoding="utf-8")
            assert urls(await reader.next()) == ["http://a", "http://b"]
            (tmp_path / "new").write_text("- a\n- c\n", encoding="utf-8")
            stat = file.stat()
            os.utime(tmp_path / "new", ns=(stat.st_atime_ns, stat.st_mtime_ns))  # same size and time, another file
            (tmp_path / "new").rename(file)
            assert urls(await reader.next()) == ["http://a", "http://c"]
            file.write_text("# a comment changes no replica\n- a\n- c\n", encoding="utf-8")
            with pytest.raises(TimeoutError):
                await reader.next(0.2)

    asyncio.run(scenario())


def test_a_file_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a list is a valid list, which would take replicas away."""
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.1)
    file = tmp_path / "replicas.yaml"
    file.write_text("- a\n- b\n", encoding="utf-8")

    async def scenario() -> None:
        async with watching(FileSource(file, poll_seconds=0.01)) as reader:
            assert len(await reader.next()) == 2
            following = asyncio.create_task(reader.next())
            with file.open("w", encoding="utf-8") as writer:
                for name in "abcdefgh":
                    writer.write(f"- {name}\n")
                    writer.flush()
                    await asyncio.sleep(0.02)
            assert len(await following) == 8

    asyncio.run(scenario())


@pytest.mark.parametrize("content", [None, "- a\n- {url: b, weight: x}\n", ""])
def test_a_file_that_became_invalid_is_a_failure_and_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.01)
    file = tmp_path / "replicas.yaml"
    file.write_text("- a\n", encoding="utf-8")
    source = FileSource(file, poll_seconds=0.01)

    async def scenario() -> None:
        async with watching(source) as reader:
            await reader.next()
            if content is None:
                file.unlink()
            else:
                file.write_text(content, encoding="utf-8")
            with pytest.raises(DiscoveryFailed, match=r"replicas\.yaml"):
                await reader.next()
        file.write_text("- b\n", encoding="utf-8")
        async with watching(source) as reader:
            assert urls(await reader.next()) == ["http://b"]

    asyncio.run(scenario())
