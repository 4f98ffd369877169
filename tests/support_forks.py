"""Processes that are forked from one which has imported everything: they start in milliseconds instead of seconds.

    ForkedProcess(command, ...)   as subprocess.Popen, for `python FILE`, `python -m MODULE` and `python -c CODE`
    process_start(is_forked)      ForkedProcess or subprocess.Popen; in `make test-all` always subprocess.Popen
    run_process(command, ...)     as subprocess.run with its output captured, by process_start
    forked_children(modules)      engines and ranks that this process starts in the block are forked
    children_of(pid)              the processes that a process has started, or has had forked, with their commands

The first fork starts the process that forks, for all workers of a test run. A forked process has its own children
forked, too: a server has an engine. To the system they are children of the process that forks, which reports their end
over the connection that asked for them.
"""

import contextlib
import fcntl
import functools
import gc
import importlib
import io
import json
import os
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support_shares import FULL

TESTS = Path(__file__).parent
START_SECONDS = 120.0
"""Timeout of the start of the process that forks, which imports everything, and of a fork."""

FOLDER_VARIABLE = "CHAIRLIFT_TEST_FORKS"
"""Environment variable with the folder of the process that forks, for the processes that it has forked."""

FOLDERS = "/tmp"
"""Where these folders are, and the lock of their starts: a test may change Python's folder for temporary files."""

RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
"""What the folders of this test run have in their names."""

ENVIRON = dict(os.environ)
"""The environment of the processes that fork: a test may change its own. Set when this module is imported."""

REQUEST_SECONDS = 10.0
"""Timeout of the bytes of a request, whose sender may be killed or stopped in the middle."""

COMMAND = "import sys, support_forks; support_forks.run_forked(support_forks.serve(sys.argv[1], sys.argv[2:]))"

SERVER_MODULES = (
    "chairlift.cli.commands.router", "chairlift.cli.serve_model", "chairlift.engine.ipc.engine_main",
    "chairlift.engine.runner.fake", "chairlift.fleet.fleet_process", "replica_main",
)  # fmt: skip
"""What servers with fake engines, routers and fleets import; none of it needs torch."""

TORCH_MODULES = (
    "chairlift.model.distributed.rank_main", "chairlift.llm.build", "chairlift.engine.ipc.engine_main",
    "chairlift.model.runner.torch_runner", "chairlift.cli.serve_model",
)  # fmt: skip
"""What a server with a model and the ranks of one import."""

CHILD_MODULES = ("chairlift.engine.ipc.engine_process", "chairlift.model.distributed.rank_process")
"""Modules that start processes of this package by `subprocess.Popen`."""

Request = dict[str, Any]


def serve(folder: str, modules: Sequence[str]) -> Request | None:
    """Fork a process for each connection, and report its end there, until no process holds standard input open.

    Returns in a forked process with what it must run, and in the process that forks at the end with None.
    """
    for module in modules:
        with contextlib.suppress(ImportError):  # an extra that is not installed
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/forks")
    listener.listen(64)
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, whose end is the end of this process, too
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))  # an engine's start blocks it, perhaps the first start
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    children: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener, wakes, 0], [], [])
        if 0 in ready and _is_unused(folder):
            return None
        if wakes in ready:
            os.read(wakes, 4096)
            _report_ends(children, folder)
        if listener not in ready:
            continue
        connection, _ = listener.accept()
        try:
            request = _receive(connection)
            pid = os.fork()
        except OSError as error:  # the sender has ended in the middle, or there is no memory for a process
            sys.stderr.write(f"no fork: {error}\n")
            connection.close()
            continue
        if pid == 0:
            _become(request)
            return request
        for descriptor in request["descriptors"]:
            os.close(descriptor)
        record = {"parent": request["parent"], "command": request["command"]}
        Path(folder, f"{pid}.new").write_text(json.dumps(record), encoding="utf-8")
        Path(folder, f"{pid}.new").rename(f"{folder}/{pid}.json")
        children[pid] = connection
        with contextlib.suppress(OSError):
            connection.sendall(b"pid %d\n" % pid)


def _is_unused(folder: str) -> bool:
    """Return whether no test process uses this process any more, and remove the folder then."""
    with _locked():  # a test process may be about to use it
        is_unused = bool(select.select([0], [], [], 0)[0])
        if is_unused:
            shutil.rmtree(folder, ignore_errors=True)
    return is_unused


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Wait until no other process has locked FOLDERS."""
    descriptor = os.open(FOLDERS, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _receive(connection: socket.socket) -> Request:
    """Read a request: its length, its JSON, and the descriptors beside it. Raises OSError."""
    connection.settimeout(REQUEST_SECONDS)
    data, descriptors, _, _ = socket.recv_fds(connection, 4, 16)
    try:
        length, content = struct.unpack("!I", data)[0] if len(data) == 4 else 1, b""
        while len(content) < length:
            received = connection.recv(length - len(content))
            if not received:
                raise ConnectionError("the request has no end")
            content += received
    except OSError:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    connection.settimeout(None)
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    request: Request = json.loads(content)
    return {**request, "descriptors": descriptors, "parent": struct.unpack("3i", peer)[0]}


def _report_ends(children: dict[int, socket.socket], folder: str) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with contextlib.suppress(OSError):
            Path(folder, f"{pid}.json").unlink()
        connection = children.pop(pid)
        with contextlib.suppress(OSError):  # the process that asked has ended
            connection.sendall(b"end %d\n" % os.waitstatus_to_exitcode(status))
        connection.close()


def _become(request: Request) -> None:
    """Make a fork the process of a request, in all but what it runs."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kept = request["descriptors"]
    for number, descriptor in enumerate(kept[:3]):
        os.dup2(descriptor, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))
    if request["new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["folder"])
    more = request["environ"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in more if path and path not in sys.path]
    # The forking process's own streams remember what their descriptors were, such as files that can be sought.
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # type: ignore[misc]


def run_forked(request: Request | None) -> None:
    """Run the command of a fork as `python` does, at the end of the program: its end is the end of the process."""
    if request is None:
        return
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")  # the module is imported already
    with forked_children(SERVER_MODULES):
        _run_command(*request["command"])


def _run_command(target: str, *arguments: str) -> None:
    if target == "-m":
        sys.argv[:] = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif target == "-c":
        sys.argv[:] = [target, *arguments[1:]]
        exec(arguments[0], {"__name__": "__main__"})
    else:
        sys.argv[:] = [target, *arguments]
        runpy.run_path(target, run_name="__main__")


def subprocess_of(modules: tuple[str, ...]) -> SimpleNamespace:
    """Return what takes the place of `subprocess` in a module that starts a process of this package."""
    return SimpleNamespace(
        Popen=functools.partial(ForkedProcess, modules=modules), PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL,
        STDOUT=subprocess.STDOUT, TimeoutExpired=subprocess.TimeoutExpired,
    )  # fmt: skip


@contextlib.contextmanager
def forked_children(modules: tuple[str, ...]) -> Iterator[None]:
    """Fork the engines and ranks that this process starts in the block; `make test-all` starts them."""
    before = {name: sys.modules[name].subprocess for name in CHILD_MODULES if name in sys.modules and not FULL}
    for name in before:
        sys.modules[name].subprocess = subprocess_of(modules)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules[name].subprocess = module  # type: ignore[attr-defined]


def process_start(is_forked: bool, modules: tuple[str, ...] = SERVER_MODULES) -> Callable[..., Any]:
    """Return what starts a process: a fork, unless it is to start as a user's does."""
    return functools.partial(ForkedProcess, modules=modules) if is_forked and not FULL else subprocess.Popen


def run_process(
    command: Sequence[str], *, modules: tuple[str, ...], input: Any = None, text: bool = False, timeout: float = 120.0,
    check: bool = False, **options: Any,
) -> "subprocess.CompletedProcess[Any]":  # fmt: skip
    """Run a command as subprocess.run does with its output captured, in a fork but for `make test-all`."""
    start = process_start(is_forked=True, modules=modules)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start(command, text=text, **pipes, **options)
    try:
        stdout, stderr = process.communicate(input, timeout)
    finally:
        process.kill()
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, stdout, stderr)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def children_of(pid: int) -> dict[int, list[str]]:
    """Return the processes that a process has started, or this run has forked for it, and that run, with commands."""
    found = {}
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, file.read_text(encoding="utf-8").split()):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                command = Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8").split("\0")
                if COMMAND not in command:  # the process that forks is no server, engine or rank
                    found[child] = command
    for folder in Path(FOLDERS).glob(f"forks-{RUN}-*"):
        for file in folder.glob("*.json"):
            with contextlib.suppress(OSError):
                record = json.loads(file.read_text(encoding="utf-8"))
                if record["parent"] == pid:
                    found[int(file.stem)] = record["command"]
    return found


@functools.cache
def _folder(modules: tuple[str, ...]) -> str:
    """Return the folder of the process that forks, once it has imported the modules.

    It is one for all workers of pytest-xdist, and lives as long as any of them.
    """
    folder = f"{FOLDERS}/forks-{RUN}-{zlib.crc32(' '.join(modules).encode()):08x}"
    with _locked():
        try:
            user = os.open(f"{folder}/users", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # there is none, or it was killed
            shutil.rmtree(folder, ignore_errors=True)
            user = _start(folder, modules)
    _USERS.append(user)
    return folder


_USERS: list[int] = []
"""Descriptors that tell the processes that fork that this process lives."""


def _start(folder: str, modules: Sequence[str]) -> int:
    """Start a process that forks, wait until it has imported, and return what tells it that this process lives."""
    os.makedirs(folder)
    os.mkfifo(f"{folder}/users")
    users = os.open(f"{folder}/users", os.O_RDONLY | os.O_NONBLOCK)
    user = os.open(f"{folder}/users", os.O_WRONLY)
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, folder, *modules], stdin=users, stdout=subprocess.PIPE, cwd=TESTS,
        env=ENVIRON | {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])},
    )  # fmt: skip
    os.close(users)
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], START_SECONDS)[0] or process.stdout.readline() != b"ready\n":
        process.kill()
        os.close(user)
        raise RuntimeError(f"the process that forks is not ready: exit code {process.wait()}")
    return user


class ForkedProcess:
    """A subprocess.Popen of a forked process: `command` is [python, FILE or -m MODULE or -c CODE, arguments].

    Options of the interpreter before FILE or -m have no effect, nor has what the modules read from `env` when they are
    imported.
    """

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | Path | None = None,
        stdin: Any = None, stdout: Any = None, stderr: Any = None, text: bool = False, bufsize: int = -1,
        start_new_session: bool = False, modules: tuple[str, ...] = SERVER_MODULES,
    ) -> None:  # fmt: skip
        assert command[0] == sys.executable, "only Python is forked"
        words = list(command[1:])
        while words[0].startswith("-") and words[0] not in ("-c", "-m"):
            words.pop(0)
        self.args = command
        self.returncode: int | None = None
        self._lock = threading.Lock()
        ours: list[int | None] = [None, None, None]
        theirs: list[int] = []
        closing: list[int] = []
        for number, option in enumerate((stdin, stdout, stderr)):
            if option == subprocess.PIPE:
                reader, writer = os.pipe()
                ours[number], end = (writer, reader) if number == 0 else (reader, writer)
                closing.append(end)
            elif option == subprocess.DEVNULL:
                closing.append(end := os.open(os.devnull, os.O_RDWR))
            elif option == subprocess.STDOUT:
                end = theirs[1]
            elif option is None:
                end = number
            else:
                end = option if isinstance(option, int) else option.fileno()
            theirs.append(end)
        folder = os.environ.get(FOLDER_VARIABLE) or _folder(modules)
        environ = dict(os.environ if env is None else env)
        request = {
            "command": words, "environ": environ | {FOLDER_VARIABLE: folder}, "folder": str(cwd or os.getcwd()),
            "new_session": start_new_session,
        }  # fmt: skip
        self._connection = socket.socket(socket.AF_UNIX)
        try:
            self._connection.connect(f"{folder}/forks")
            content = json.dumps(request).encode()
            socket.send_fds(self._connection, [struct.pack("!I", len(content))], theirs)
            self._connection.sendall(content)
            self._lines = b""
            pid = self._number("pid", START_SECONDS)
            assert pid is not None, "no process was forked in time"
            self.pid = pid
        finally:
            for descriptor in closing:
                os.close(descriptor)
        files = [None if each is None else os.fdopen(each, "wb" if number == 0 else "rb", bufsize)
                 for number, each in enumerate(ours)]  # fmt: skip
        self.stdin, self.stdout, self.stderr = (
            io.TextIOWrapper(each) if text and each is not None else each for each in files
        )

    def _number(self, kind: str, seconds: float | None) -> int | None:
        """Return the number of the next line, None if none comes in time."""
        end = None if seconds is None else time.monotonic() + seconds
        while b"\n" not in self._lines:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._connection], [], [], left)[0]:
                return None
            received = self._connection.recv(64)
            assert received, "the process that forks has ended"
            self._lines += received
        line, _, self._lines = self._lines.partition(b"\n")
        name, _, number = line.decode().partition(" ")
        assert name == kind, line
        return int(number)

    def poll(self) -> int | None:
        """Return the exit code, minus the signal's number for a signal; None while the process runs."""
        with self._lock:
            if self.returncode is None:
                self.returncode = self._number("end", 0.0)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; raises subprocess.TimeoutExpired."""
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            select.select([self._connection], [], [], left)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write `input`, read both outputs to their end and wait; raises subprocess.TimeoutExpired."""
        outputs: dict[Any, Any] = {None: None}

        def read(file: Any) -> None:
            outputs[file] = file.read()

        files = [each for each in (self.stdout, self.stderr) if each is not None]
        readers = [threading.Thread(target=read, args=(file,), daemon=True) for file in files]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it ended without reading
                if input:
                    self.stdin.write(input)
                self.stdin.close()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return outputs[self.stdout], outputs[self.stderr]
