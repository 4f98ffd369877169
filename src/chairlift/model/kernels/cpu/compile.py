"""Compile the kernels: `python -m chairlift.model.kernels.cpu.compile [--sanitize] [LIBRARY]`; the build does it, too.

This file uses the standard library only: the build loads it by its path, before Chairlift is installed.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "csrc"
LIBRARY = "libchairlift_cpu.so"

AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma")
INSTRUCTION_SETS: Mapping[str, tuple[str, ...]] = {
    "avx512_bf16": (*AVX512, "-mavx512vnni", "-mavx512bf16"),
    "avx512": AVX512,
    "avx2": ("-mavx2", "-mfma"),
    "portable": (),
}
"""Instruction set -> flags of its kernels; the best one first. All but the last are x86-64's."""

PLAIN = ("api.cpp", "decoder.cpp", "draw.cpp", "pack.cpp", "pool.cpp", "step.cpp")
FLAGS = ("-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
NOISE = ("-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Wno-unused-function")
"""GCC 12's own headers of AVX-512 read what was not initialised, on purpose."""

SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1", "-O1")


class CompileFailed(Exception):
    """There is no compiler, or it failed; says which and how."""


def compile_library(target: Path, extra: Sequence[str] = ()) -> Path:
    """Compile all sources into the library `target`; `extra` are more flags, such as a sanitizer's.

    The compiler is $CXX, else g++, c++ or clang++. Raises CannotCompile.
    """
    compiler = find_compiler()
    jobs: list[tuple[str, str, tuple[str, ...]]] = [(name, name, ()) for name in PLAIN]
    for name, flags in instruction_set_flags().items():
        jobs.append(("isa.cpp", f"isa_{name}", (f"-DCHAIRLIFT_SET={name}", *flags)))
    with tempfile.TemporaryDirectory() as folder:
        objects = [Path(folder) / f"{name}.o" for _, name, _ in jobs]

        def build(job: tuple[str, str, tuple[str, ...]], to: Path) -> None:
            source, _, flags = job
            _run([*compiler, *FLAGS, *NOISE, *flags, *extra, "-c", str(SOURCES / source), "-o", str(to)])

        with ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2) as pool:
            list(pool.map(build, jobs[::-1], objects[::-1]))
        made = Path(folder) / LIBRARY
        _run([*compiler, "-shared", "-pthread", *extra, *map(str, objects), "-o", str(made)])
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{os.getpid()}")  # whoever runs has the old one mapped
        shutil.copyfile(made, beside)
        beside.chmod(0o755)
        beside.replace(target)
    return target


def is_current(library: Path) -> bool:
    """Return whether a library is newer than every source."""
    made = library.stat().st_mtime
    return all(source.stat().st_mtime < made for source in SOURCES.iterdir() if source.suffix in (".cpp", ".h"))


def instruction_set_flags() -> Mapping[str, tuple[str, ...]]:
    """Return the instruction sets that this kind of processor may have, with their flags."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        return INSTRUCTION_SETS
    return {"portable": INSTRUCTION_SETS["portable"]}


def find_compiler() -> list[str]:
    """Return the command of a C++ compiler. Raises CannotCompile where there is none, or none that is known to do."""
    if sys.platform != "linux":
        raise CompileFailed(f"the kernels are made for Linux, this is {sys.platform}")
    given = shlex.split(os.environ.get("CXX", ""))
    if given:
        if shutil.which(given[0]) is None:
            raise CompileFailed(f"there is no {given[0]}, which $CXX names")
        return given
    for name in ("g++", "c++", "clang++"):
        if shutil.which(name):
            return [name]
    raise CompileFailed("there is no C++ compiler: neither g++, c++ nor clang++")


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompileFailed(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        raise CompileFailed(f"{shlex.join(command)} failed with {done.returncode}:\n{done.stderr.strip()[-4000:]}")


def main(words: Sequence[str] = ()) -> int:
    """Compile the library into its place beside this file, or into the file named; returns the exit code.

    With --sanitize it stops a program that reads or writes beyond its memory, or whose arithmetic is undefined.
    """
    targets = [word for word in words if word != "--sanitize"]
    target = Path(targets[0]).resolve() if targets else HERE / LIBRARY
    try:
        made = compile_library(target, SANITIZED if "--sanitize" in words else ())
    except CompileFailed as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"compiled {made}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
