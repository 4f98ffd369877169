"""FakeAdapters: equal files have equal digests wherever they are, and a broken folder leaves nothing behind."""

from pathlib import Path

import pytest

from chairlift.core.errors import ModelError
from chairlift.engine.runner.fake_adapters import FakeAdapters, cache_key
from support_adapter_versions import write_adapter


def test_a_digest_is_that_of_the_files(tmp_path: Path) -> None:
    adapters = FakeAdapters()
    first = adapters.load(1, str(write_adapter(tmp_path / "a", [b"one"])))
    copy = adapters.load(2, str(write_adapter(tmp_path / "copy", [b"one"])))
    other = adapters.load(3, str(write_adapter(tmp_path / "a", [b"two!"])))
    assert first.digest == copy.digest != other.digest and other.num_bytes == 4
    assert cache_key(first.digest) != cache_key(other.digest) and cache_key("") == 0
    assert adapters.digest(0) == "" and adapters.digest(2) == first.digest
    adapters.drop(2)
    adapters.drop(99)
    assert adapters.numbers == [1, 3]
    with pytest.raises(AssertionError, match="adapter 2 is not loaded"):
        adapters.digest(2)


def test_a_folder_without_files_is_an_error(tmp_path: Path) -> None:
    adapters = FakeAdapters()
    with pytest.raises(ModelError, match="has no files"):
        adapters.load(1, str(tmp_path / "missing"))
    assert adapters.numbers == []
