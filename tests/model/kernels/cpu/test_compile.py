"""compile_library: choice of the compiler, errors without one, and the check for a stale library."""

import errno
import fcntl
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from chairlift.model.kernels.cpu import compile as compiling
from chairlift.model.kernels.cpu.compile import (
    CompileFailed,
    compilable_sets,
    compile_library,
    compile_unless_current,
    find_compiler,
    instruction_set_flags,
    is_current,
    main,
)
from chairlift.model.kernels.cpu.library import NativeLibrary
from support_source_tree import ROOT


def test_cxx_names_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "/bin/false -pipe")
    assert find_compiler() == ["/bin/false", "-pipe"]
    with pytest.raises(CompileFailed, match=r"/bin/false -pipe .* failed with 1"):
        compile_library(tmp_path / "library.so")
    assert not list(tmp_path.iterdir())


def test_a_compiler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompileFailed, match=r"no-such-compiler that \$CXX names does not exist"):
        find_compiler()


def test_without_a_compiler_it_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main() == 1
    assert capsys.readouterr().err == "no C++ compiler found: neither g++, c++ nor clang++\n"


def test_other_systems_get_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(CompileFailed, match="win32"):
        find_compiler()


def test_every_processor_gets_its_kernels_and_the_portable_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert list(instruction_set_flags()) == ["portable"]
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert list(instruction_set_flags()) == ["neon_dotprod", "neon", "portable"]
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert list(instruction_set_flags()) == ["amx_bf16", "avx512_bf16", "avx512", "avx2_vnni", "avx2", "portable"]


def test_a_library_is_stale_once_a_source_is_newer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiling, "SOURCES", tmp_path)
    for name in ("a.cpp", "b.h", "library.so"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() + len(name), time.time() + len(name)))
    assert is_current(tmp_path / "library.so", ())
    os.utime(tmp_path / "b.h", (time.time() + 100, time.time() + 100))
    assert not is_current(tmp_path / "library.so", ())


def test_a_library_without_a_set_that_is_asked_for_is_stale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    (tmp_path / "sources").mkdir()
    monkeypatch.setattr(compiling, "SOURCES", tmp_path / "sources")
    library.write_bytes(b"\0compiled sets: avx2 portable\0\1")
    assert compiling.compiled_sets(library) == ["avx2", "portable"]
    assert is_current(library, ["portable"]) and is_current(library, ["avx2", "portable"])
    assert not is_current(library, ["avx512", "avx2", "portable"])


@pytest.mark.parametrize(("features", "sets"), [
    ("fpu sse2", "portable"), ("fma avx2 f16c avx512f", "avx2 portable"), ("avx2", "portable"),
    ("fma avx2 f16c avx_vnni", "avx2_vnni avx2 portable"),
    ("fma avx2 f16c avx512f avx512bw avx512vl avx512dq", "avx512 avx2 portable"),
    ("fma avx2 f16c avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16", "avx512_bf16 avx512 avx2 portable"),
    ("fma avx2 f16c avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8",
     "amx_bf16 avx512_bf16 avx512 avx2 portable"),
])  # fmt: skip
def test_the_sets_of_a_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, features: str, sets: str) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(compiling, "CPU_INFO", tmp_path / "cpuinfo")
    assert compiling.processor_sets() == tuple(instruction_set_flags()), "the file is missing: the processor is unknown"
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nmodel name\t: A\nflags\t\t: {features}\nflags\t\t: avx2 fma\n")
    assert compiling.processor_sets() == tuple(sets.split())


def test_a_server_s_build_compiles_the_sets_of_the_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Sequence[str]] = []
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(compiling, "CPU_INFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("flags : sse2\n")
    monkeypatch.setattr(compiling, "compile_library", lambda library, sets: calls.append(sets))
    for mode in ("processor", ""):
        monkeypatch.setenv("CHAIRLIFT_BUILD_KERNELS", mode)
        assert main(["--unless-current", str(tmp_path / "library.so")]) == 0
    everything = ("amx_bf16", "avx512_bf16", "avx512", "avx2_vnni", "avx2", "portable")
    assert calls == [("portable",), everything]


@pytest.mark.full
def test_a_library_of_one_set_has_no_other(tmp_path: Path) -> None:
    path = compile_library(tmp_path / "library.so", sets=("portable",))
    loaded = NativeLibrary(path)
    assert loaded.compiled_sets() == b"compiled sets: portable" and compiling.compiled_sets(path) == ["portable"]
    assert [name for name in compiling.INSTRUCTION_SETS if loaded.has(name.encode())] == ["portable"]


def test_a_current_library_stays_if_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    library = tmp_path / "library.so"
    (tmp_path / "sources").mkdir()
    monkeypatch.setattr(compiling, "SOURCES", tmp_path / "sources")
    monkeypatch.setenv("CXX", "/bin/false")
    assert main(["--unless-current", str(library)]) == 1
    library.write_bytes(f"compiled sets: {' '.join(instruction_set_flags())}\0".encode())
    assert main(["--unless-current", str(library)]) == 0 and capsys.readouterr().out == f"{library} is current\n"
    assert main([str(library)]) == 1
    assert main(["--unless-current", "--sanitize", str(library)]) == 2
    library.unlink()
    monkeypatch.setenv("CHAIRLIFT_BUILD_KERNELS", "none")
    assert main(["--unless-current", str(library)]) == 0 and not library.exists()


def test_a_library_in_a_new_folder_that_cannot_be_locked_is_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.EBADF, "a network file system locks no folder")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(compiling, "compile_library", lambda library, sets: library.touch())
    assert compile_unless_current(tmp_path / "new" / "library.so")
    assert (tmp_path / "new" / "library.so").exists()


def test_the_build_hook_uses_names_that_exist() -> None:
    names = re.findall(r"\bmodule\.(\w+)", (ROOT / "hatch_build.py").read_text(encoding="utf-8"))
    assert "CompileFailed" in names and [name for name in names if not hasattr(compiling, name)] == []


def test_a_compiler_that_does_not_know_an_instruction_set_compiles_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "g++-10"
    compiler.write_text('#!/bin/sh\ncase "$*" in *avxvnni*) exit 1;; esac\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    others = ("amx_bf16", "avx512_bf16", "avx512", "avx2", "portable")
    assert compilable_sets(tuple(instruction_set_flags())) == others
    calls: list[Sequence[str]] = []
    monkeypatch.setattr(compiling, "compile_library", lambda library, sets: calls.append(sets))
    library = tmp_path / "library.so"
    assert compile_unless_current(library) and calls == [others]
    library.write_bytes(b"\0compiled sets: amx_bf16 avx512_bf16 avx512 avx2 portable\0")
    os.utime(library, (time.time() + 100, time.time() + 100))
    assert not compile_unless_current(library)
