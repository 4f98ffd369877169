"""system_files: lines, numbers and sizes of files that may be missing."""

from pathlib import Path

from chairlift.core.host.system_files import read_lines, read_number, read_sizes, read_stat


def test_a_missing_file_and_a_folder_have_no_lines(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\n\xff\n")
    assert read_lines(tmp_path / "file") == ["a", "\ufffd"]
    assert read_lines(tmp_path / "none") == [] and read_lines(tmp_path) == []


def test_a_number_is_none_where_there_is_no_limit(tmp_path: Path) -> None:
    for text, number in {"12\n": 12, "max\n": None, "-1\n": None, "": None}.items():
        (tmp_path / "file").write_text(text)
        assert read_number(tmp_path / "file") == number
    assert read_number(tmp_path / "none") is None


def test_the_fields_of_a_process_begin_behind_its_command(tmp_path: Path) -> None:
    (tmp_path / "stat").write_bytes(b"12 (a) \xff (b) R 1 2\n")
    assert read_stat(tmp_path) == ["R", "1", "2"] and read_stat(tmp_path / "none") == []


def test_sizes_are_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("MemTotal:  2 kB\nHugePages_Total: 3\nodd\nName:\tx y\nEmpty:\n")
    assert read_sizes(tmp_path / "file") == {"MemTotal": 2048, "HugePages_Total": 3}
