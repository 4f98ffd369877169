"""System information from fake /proc and /sys trees, and libraries from given requirements."""

import sys
import tomllib
from pathlib import Path

import pytest

from chairlift.cli import system_info
from chairlift.cli.system_info import PURPOSES, Library, compiler, cpu, environment, libraries, memory
from support_nvml import NO_DRIVER, FakeNvml
from support_source_tree import ROOT


def files(folder: Path, **contents: str) -> Path:
    for name, text in contents.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


CPUINFO = "".join(
    f"processor\t: {number}\nmodel name\t: Zen\nphysical id\t: 0\ncore id\t: {number // 2}\n\n" for number in range(8)
)


def test_a_password_in_a_variable_is_not_shown() -> None:
    environ = {"CHAIRLIFT_SHARED_STATE": "redis://:hunter2@redis", "CHAIRLIFT_NOTIFY_URL": "https://a/hunter2"}
    assert environment(environ) == {
        "CHAIRLIFT_SHARED_STATE": "redis://***@redis", "CHAIRLIFT_NOTIFY_URL": "https://a/***",
    }  # fmt: skip


def test_the_cpu_has_its_cores_and_quota(tmp_path: Path) -> None:
    proc = files(tmp_path / "proc", cpuinfo=CPUINFO, self__cgroup="0::/\n")
    result = cpu(proc, files(tmp_path / "cgroup", **{"cpu.max": "150000 100000\n"}))
    assert (result["model"], result["cores"], result["quota"]) == ("Zen", 4, 1.5)
    assert result["usable"] >= 1 and result["logical"] >= 1


def test_a_machine_without_information_is_unknown(tmp_path: Path) -> None:
    assert cpu(tmp_path, tmp_path)["model"] == "unknown"
    assert memory(tmp_path, tmp_path) == {
        "total": None, "available": None, "transparent_huge_pages": None, "huge_pages": 0,
    }  # fmt: skip


def test_memory_is_in_bytes_and_huge_pages_are_the_chosen_mode(tmp_path: Path) -> None:
    proc = files(tmp_path / "proc", meminfo="MemTotal: 2048 kB\nMemAvailable: 1024 kB\nHugePages_Total: 3\nodd\n")
    sys_tree = files(tmp_path / "sys", kernel__mm__transparent_hugepage__enabled="always madvise [never]\n")
    assert memory(proc, sys_tree) == {
        "total": 2**21, "available": 2**20, "transparent_huge_pages": "never", "huge_pages": 3,
    }  # fmt: skip


def test_only_relevant_variables_are_returned() -> None:
    environ = {"PATH": "x", "CHAIRLIFT_OVERLAP": "1", "OMP_NUM_THREADS": "2", "SECRET_TOKEN": "t"}
    assert environment(environ) == {"OMP_NUM_THREADS": "2", "CHAIRLIFT_OVERLAP": "1"}
    values = environment({"CHAIRLIFT_API_KEY": "sk-1", "CHAIRLIFT_ADMIN_KEY": "sk-2"})
    assert sorted(values) == ["CHAIRLIFT_ADMIN_KEY", "CHAIRLIFT_API_KEY"] and "sk-" not in str(values)


def test_the_compiler_reports_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (compiler({"CXX": sys.executable}) or {})["version"].startswith("Python 3")
    monkeypatch.setattr(system_info, "COMPILERS", ("no-such-compiler",))
    assert compiler({}) is None
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    assert compiler({"CXX": str(broken)}) is None


def test_requirements_are_read_with_extra_and_bound() -> None:
    requirements = [
        "numpy>=1.26", "Tqdm", "no-such-thing>=2", 'transformers>=99.0; extra == "transformers"',
        'pytest>=8; extra == "test"', 'chairlift[transformers]; extra == "test"',
        "safetensors<9,>=0.5; python_version > '3'",
    ]  # fmt: skip
    result = {library.name: library for library in libraries(requirements)}
    assert set(result) == {"numpy", "tqdm", "no-such-thing", "transformers", "safetensors"}
    assert result["numpy"].is_supported and result["tqdm"].is_supported and result["safetensors"].least == "0.5"
    assert result["no-such-thing"] == Library("no-such-thing", "", "2", None)
    assert result["transformers"].extra == "transformers" and not result["transformers"].is_supported


@pytest.mark.parametrize(
    ("version", "least", "is_supported"),
    [("2.13.0+cpu", "2.9", True), ("2.9", "2.9", True), ("2.8.9", "2.9", False), ("3.0rc1", "2.9.1", True)],
)
def test_versions_are_compared_by_their_numbers(version: str, least: str, is_supported: bool) -> None:
    assert Library("x", "", least, version).is_supported == is_supported


def test_every_required_library_has_a_purpose() -> None:
    # The project file, not the installed metadata: those are as old as the last installation.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].items()
    optional = [f'{line}; extra == "{extra}"' for extra, lines in extras for line in lines]
    result = list(libraries([*project["dependencies"], *optional]))
    assert result and {library.name for library in result} <= set(PURPOSES)
    assert [library for library in result if not library.extra and not library.is_supported] == []


def test_the_driver_of_the_gpus_has_a_version_and_its_library_is_closed() -> None:
    fake = FakeNvml()
    assert system_info.gpu_driver(fake.open) == "580.95.05" and fake.get("fake_num_open") == 0
    fake.set("fake_init_error", NO_DRIVER)
    assert system_info.gpu_driver(fake.open) is None
