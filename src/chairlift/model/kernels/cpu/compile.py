"""compile_library: compiles the native kernels.

Command: `python -m chairlift.model.kernels.cpu.compile [--sanitize] [--unless-current] [LIBRARY]`. The build of a wheel
compiles them, too (hatch_build.py). It and the Makefile run this file by its path before Chairlift is installed, so the
file imports the standard library only.
"""

import contextlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "csrc"
LIBRARY = "libchairlift_cpu.so"
CPU_INFO = Path("/proc/cpuinfo")

AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma")
AVX512_BF16 = (*AVX512, "-mavx512vnni", "-mavx512bf16")
INSTRUCTION_SETS: Mapping[str, tuple[str, ...]] = {
    "amx_bf16": (*AVX512_BF16, "-mamx-tile", "-mamx-bf16"),
    "avx512_bf16": AVX512_BF16,
    "avx512": AVX512,
    "avx2_vnni": (*AVX2, "-mavxvnni"),
    "avx2": AVX2,
    "portable": (),
}
"""Instruction set of x86-64 -> compiler flags of its kernels, the best set first."""

ARM_INSTRUCTION_SETS: Mapping[str, tuple[str, ...]] = {
    "neon_dotprod": ("-DCHAIRLIFT_NEON", "-march=armv8.2-a+dotprod"),
    "neon": ("-DCHAIRLIFT_NEON",),
    "portable": (),
}
"""The same for 64-bit ARM."""

COMMON_SOURCES = (
    "api.cpp", "decoder.cpp", "expert_plan.cpp", "pack.cpp", "sampling.cpp", "step.cpp", "tensors.cpp",
    "thread_pool.cpp",
)  # fmt: skip
"""Sources that are compiled once. isa.cpp is compiled once per instruction set, but for those of SET_SOURCES."""

SET_SOURCES = {"amx_bf16": "amx.cpp"}
"""Source of an instruction set that shares most kernels with the next one, which must be compiled in, too."""

FLAGS = ("-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
WARNING_FLAGS = ("-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Wno-unused-function")
"""GCC 12 warns about its own AVX-512 headers, which read uninitialised values on purpose."""

SANITIZE_FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1", "-O1")


class CompileFailed(Exception):
    """The kernels could not be compiled. The message names the compiler and its error."""


def compile_library(target: Path, extra: Sequence[str] = (), sets: Sequence[str] = ()) -> Path:
    """Compile all sources into the library `target`.

    The compiler is $CXX, else g++, c++ or clang++. `extra` are more flags, such as a sanitizer's. `sets` are the
    instruction sets; if there are none, all of this processor architecture that the compiler knows. Raises
    CompileFailed.
    """
    compiler = find_compiler()
    set_flags = instruction_set_flags()
    sets = sets or compilable_sets(tuple(set_flags))
    sets_flag = f'-DCHAIRLIFT_SETS="{" ".join(sets)}"'
    jobs: list[tuple[str, str, tuple[str, ...]]] = [(name, name, (sets_flag,)) for name in COMMON_SOURCES]
    for name in sets:
        jobs.append((SET_SOURCES.get(name, "isa.cpp"), f"isa_{name}", (f"-DCHAIRLIFT_SET={name}", *set_flags[name])))
    with tempfile.TemporaryDirectory() as folder:
        objects = [Path(folder) / f"{name}.o" for _, name, _ in jobs]

        def compile_object(job: tuple[str, str, tuple[str, ...]], to: Path) -> None:
            source, _, flags = job
            _run([*compiler, *FLAGS, *WARNING_FLAGS, *flags, *extra, "-c", str(SOURCES / source), "-o", str(to)])

        with ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2) as pool:
            # The kernels of an instruction set take longest, so they are started first.
            list(pool.map(compile_object, jobs[::-1], objects[::-1]))
        linked = Path(folder) / LIBRARY
        _run([*compiler, "-shared", "-pthread", *extra, *map(str, objects), "-o", str(linked)])
        target.parent.mkdir(parents=True, exist_ok=True)
        # A running process may have the old library mapped: replace the file, do not overwrite it.
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(linked, temporary)
        temporary.chmod(0o755)
        temporary.replace(target)
    return target


def compile_unless_current(library: Path, mode: str = "") -> bool:
    """Compile the library unless a current one is there; of several processes at once, one compiles it.

    With the mode "processor", the library has the instruction sets of this machine's processor only, which takes half
    the time on a machine without AVX-512. Returns whether this call has compiled it. Raises CompileFailed.
    """
    sets = processor_sets() if mode == "processor" else tuple(instruction_set_flags())
    library.parent.mkdir(parents=True, exist_ok=True)
    with _locked(library.parent):
        if library.exists() and is_current(library, sets):
            return False
        sets = compilable_sets(sets)
        if library.exists() and is_current(library, sets):
            return False
        compile_library(library, sets=sets)
        return True


def compilable_sets(sets: Sequence[str]) -> tuple[str, ...]:
    """Return those of the instruction sets that the compiler knows: GCC 10 has no AVX-VNNI. Raises CompileFailed."""
    compiler, set_flags = find_compiler(), instruction_set_flags()

    def is_known(name: str) -> bool:
        command = [*compiler, *set_flags[name], "-x", "c++", "-fsyntax-only", os.devnull]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    return tuple(name for name in sets if name == "portable" or is_known(name))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process has locked the folder. The folder itself is the lock, so that no file is left."""
    if sys.platform != "linux":  # compile_library() compiles nothing there
        yield
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems lock no folder: then each compiles its own
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_current(library: Path, sets: Sequence[str]) -> bool:
    """Return whether a library is newer than every source and has the kernels of these instruction sets."""
    compiled_at = library.stat().st_mtime
    is_new = all(
        source.stat().st_mtime < compiled_at for source in SOURCES.iterdir() if source.suffix in (".cpp", ".h")
    )
    return is_new and set(sets) <= set(compiled_sets(library))


def compiled_sets(library: Path) -> list[str]:
    """Return the instruction sets of a library, which its file names; it need not run on this machine."""
    found = re.search(rb"compiled sets: ([\w ]+)\0", library.read_bytes())
    return found[1].decode().split() if found else []


def processor_sets() -> tuple[str, ...]:
    """Return the instruction sets that this machine's processor has, the best first; all if the system does not say."""
    try:
        text = CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    if found is None:
        return tuple(instruction_set_flags())
    words = found[1].split()
    # Linux calls -mavx512vnni avx512_vnni, -mamx-tile amx_tile, and dotprod asimddp. Hyphens of flags do not count.
    features = {f"-m{word.replace('_', '')}" for word in words} | {"-DCHAIRLIFT_NEON"}
    if "asimddp" in words:
        features.add("-march=armv8.2-a+dotprod")
    known = {feature.replace("-", "") for feature in features}
    return tuple(
        name for name, flags in instruction_set_flags().items()
        if known.issuperset(flag.replace("-", "") for flag in flags)
    )  # fmt: skip


def instruction_set_flags() -> Mapping[str, tuple[str, ...]]:
    """Return the instruction sets of this processor architecture, with their compiler flags."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        return INSTRUCTION_SETS
    if platform.machine().lower() in ("aarch64", "arm64"):
        return ARM_INSTRUCTION_SETS
    return {"portable": INSTRUCTION_SETS["portable"]}


def find_compiler() -> list[str]:
    """Return the command of a C++ compiler.

    Raises CompileFailed if there is none, and on every system but Linux.
    """
    if sys.platform != "linux":
        raise CompileFailed(f"the native kernels need Linux, this is {sys.platform}")
    command = shlex.split(os.environ.get("CXX", ""))
    if command:
        if shutil.which(command[0]) is None:
            raise CompileFailed(f"the compiler {command[0]} that $CXX names does not exist")
        return command
    for name in ("g++", "c++", "clang++"):
        if shutil.which(name):
            return [name]
    raise CompileFailed("no C++ compiler found: neither g++, c++ nor clang++")


def _run(command: Sequence[str]) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompileFailed(f"{command[0]} cannot be run: {error}") from error
    if result.returncode:
        raise CompileFailed(f"{shlex.join(command)} failed with {result.returncode}:\n{result.stderr.strip()[-4000:]}")


def main(arguments: Sequence[str] = ()) -> int:
    """Compile the library beside this file, or into the file that `arguments` name; return the exit code.

    With --sanitize, the library aborts on out-of-bounds memory accesses and undefined behaviour. With --unless-current,
    a current library stays, and CHAIRLIFT_BUILD_KERNELS counts as in a build (hatch_build.py).
    """
    targets = [argument for argument in arguments if not argument.startswith("--")]
    target = Path(targets[0]).resolve() if targets else HERE / LIBRARY
    is_conditional = "--unless-current" in arguments
    if is_conditional and "--sanitize" in arguments:
        sys.stderr.write("--unless-current: a library does not say whether it was compiled with --sanitize\n")
        return 2
    mode = os.environ.get("CHAIRLIFT_BUILD_KERNELS", "")
    if is_conditional and mode == "none":
        sys.stdout.write("CHAIRLIFT_BUILD_KERNELS is none: nothing is compiled\n")
        return 0
    try:
        if not is_conditional:
            compile_library(target, SANITIZE_FLAGS if "--sanitize" in arguments else ())
        elif not compile_unless_current(target, mode):
            sys.stdout.write(f"{target} is current\n")
            return 0
    except CompileFailed as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"compiled {target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
