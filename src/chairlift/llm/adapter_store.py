"""AdapterStore: the LoRA adapters of one engine by name: loads, replaces, leases and drops their versions.

A name has one current version; requests that run keep theirs. Loads and drops run one after another in a thread of the
store, beside the engine's steps. A request holds a lease of its version until it has ended or was aborted.

    load ──► thread: client.load_adapter ──► current version ──lease──► requests
                                    replaced, unloaded or unused ──► after the last lease: client.drop_adapter
"""

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chairlift.core.adapter_version import AdapterVersion
from chairlift.core.errors import ChairliftError, InvalidRequest, ModelError, ModelNotFound, Overloaded
from chairlift.engine.client.base import EngineClient
from chairlift.engine.runner.base import AdapterInfo

log = logging.getLogger(__name__)

MAX_NAME_CHARS = 256

RETRY_SECONDS = 1.0
"""Seconds after which a client may ask again for an adapter for which there is no memory while others run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterState:
    """An adapter for people and for lists of models.

    Attributes:
        name: by which requests choose it.
        path: its folder.
        parent: the name of the model that it belongs to.
        pinned: whether it stays in memory while no request has it.
        is_loaded: whether its current version is in the engine's memory; a request loads one that is not.
        rank: largest rank of its products; 0 before it was loaded.
        num_bytes: memory of its current version; 0 while it is not loaded.
        running: requests that have a lease of it, of any version.
        waiting: requests that wait until it is loaded.
    """

    name: str
    path: str
    parent: str
    pinned: bool
    is_loaded: bool
    rank: int
    num_bytes: int
    running: int
    waiting: int


@dataclass(slots=True, eq=False)
class _Version:
    """A version in the engine's memory.

    Attributes:
        restarts: of the engine when it was loaded; a restarted engine has no adapter.
        num_leases: requests that have it.
        is_current: whether new requests get it; any other is dropped after its last lease.
    """

    value: AdapterVersion
    info: AdapterInfo
    restarts: int
    num_leases: int = 0
    is_current: bool = True


@dataclass(slots=True, eq=False)
class _Adapter:
    """A name.

    Attributes:
        num_loads: loads that have not ended; requests wait for the last of them.
        waiting: leases that wait for a load, with the folder that they need, "" for any.
        used_at: position in the order of uses.
        requested: the folder of the last load that was started; `path` is that of the current version.
        was_loaded: whether a load has succeeded; otherwise the name ends with its failure.
    """

    name: str
    path: str
    pinned: bool
    version: _Version | None = None
    num_loads: int = 0
    waiting: "list[tuple[Future[AdapterLease], str]]" = field(default_factory=list)
    used_at: int = 0
    was_loaded: bool = False
    requested: str = ""
    rank: int = 0
    num_running: int = 0


class AdapterLease:
    """The use of one version by one request, or by several of one call. Ends with release(), or when it is garbage.

    Attributes:
        version: for GenerateRequest.adapter.
    """

    def __init__(self, version: AdapterVersion, release: Callable[[], None], abandon: Callable[[], None]) -> None:
        self.version = version
        self._ends = [(release, abandon)]  # popped by the first end, in whichever thread

    def release(self) -> None:
        """End the use: its requests have ended or were aborted. May be called more than once, from any thread."""
        try:
            release, _ = self._ends.pop()
        except IndexError:
            return
        release()

    def __del__(self) -> None:
        # A finalizer may interrupt code that holds the store's lock, so it takes none.
        for _, abandon in self._ends:
            abandon()


class AdapterStore:
    """The adapters of one engine client. Thread-safe; no method waits for a load, whose end a Future tells."""

    def __init__(
        self, client: EngineClient, model: str, *, max_bytes: int | None = None, folder: Path | None = None
    ) -> None:  # fmt: skip
        """Start without adapters.

        Args:
            client: the engine, whose adapters belong to this store alone.
            model: the name of the model; no adapter may have it.
            max_bytes: memory for adapters, None for no limit. During a load there is one more.
            folder: where an unknown name is looked up as a folder; None for nowhere.
        """
        self._client, self._model = client, model
        self._max_bytes, self._folder = max_bytes, folder
        self._lock = threading.Lock()
        self._adapters: dict[str, _Adapter] = {}
        self._versions: set[_Version] = set()  # all that are in the engine's memory
        self._jobs: deque[Callable[[], None]] = deque()
        self._is_working = False
        self._abandoned: deque[Callable[[], None]] = deque()
        self._numbers, self._uses = itertools.count(1), itertools.count(1)

    # -- from any thread -------------------------------------------------------------------------------------------

    def load(
        self, name: str, path: str | Path, *, pinned: bool = False, in_place: bool = False
    ) -> "Future[AdapterState]":
        """Load the adapter of a folder under a name; the Future has its state, or the error of the load.

        With `in_place` it replaces one of that name: requests from now on wait for the new version, those that run
        finish with theirs. A failed replacement leaves the older version.

        Raises InvalidRequest for a name that cannot be used, or that is loaded already. Errors of the load are
        InvalidRequest for a folder that cannot be used or an adapter that is larger than the memory for adapters,
        Overloaded while requests use that memory, ConfigError for an engine without adapters, EngineDead.
        """
        self._check_name(name)
        with self._locked():
            adapter = self._adapters.get(name)
            if adapter is not None and not in_place:
                raise InvalidRequest(
                    f"the LoRA adapter {name!r} is already loaded; unload it first, or replace it in place",
                    param="lora_name",
                )
            if adapter is None:
                adapter = self._adapters[name] = _Adapter(name, str(path), pinned)
            return self._start_load(adapter, str(path), pinned=pinned)

    def unload(self, name: str) -> None:
        """Forget a name at once; its version is dropped after the last request that has it.

        Raises ModelNotFound for an unknown name.
        """
        with self._locked():
            adapter = self._adapters.pop(name, None)
            if adapter is None:
                raise self._not_found(name)
            self._retire(adapter)
            waiting, adapter.waiting = adapter.waiting, []
            error = self._not_found(name)
        for lease, _ in waiting:
            _fail(lease, error)

    def lease(self, name: str) -> "Future[AdapterLease]":
        """Return a Future of the use of a name's current version; it waits only while that is loaded.

        A name that is not in memory is loaded: one that was dropped to make room, or one in the store's folder.
        Raises ModelNotFound for an unknown name; the Future has the errors of a load.
        """
        with self._locked():
            is_known = name in self._adapters
        path = None if is_known else self._find(name)
        with self._locked():
            adapter = self._adapters.get(name)
            if adapter is None:
                if path is None:
                    raise self._not_found(name)
                adapter = self._adapters[name] = _Adapter(name, path, pinned=False)
            return self._lease(adapter, "")

    def lease_folder(self, name: str, path: str, *, in_place: bool = False) -> "Future[AdapterLease]":
        """Return a Future of the use of a folder under a name; another folder replaces the version of the name.

        With `in_place` the folder is loaded again. Raises InvalidRequest for a name that cannot be used.
        """
        self._check_name(name)
        with self._locked():
            adapter = self._adapters.get(name)
            if adapter is None:
                adapter = self._adapters[name] = _Adapter(name, path, pinned=False)
            elif adapter.requested != path or in_place:
                self._start_load(adapter, path, pinned=adapter.pinned)
            return self._lease(adapter, path)

    def states(self) -> list[AdapterState]:
        """Return the known adapters in the order of their first loads."""
        with self._locked():
            return [self._state(adapter) for adapter in self._adapters.values()]

    @property
    def num_bytes(self) -> int:
        """Memory of all versions that the engine has, in bytes."""
        with self._locked():
            return self._num_bytes()

    # -- names -----------------------------------------------------------------------------------------------------

    def _check_name(self, name: str) -> None:
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_CHARS:
            raise InvalidRequest(f"lora_name must have 1 to {MAX_NAME_CHARS} characters", param="lora_name")
        if name == self._model:
            raise InvalidRequest(f"{name!r} is the name of the model; give the adapter another", param="lora_name")

    def _find(self, name: str) -> str | None:
        """Return the folder of an unknown name in the store's folder, None if there is none."""
        is_plain = bool(name) and len(name) <= MAX_NAME_CHARS and name[0] != "." and not set(name) & set("/\\\0")
        if self._folder is None or not is_plain:
            return None
        path = self._folder / name
        return str(path) if path.is_dir() else None

    def _not_found(self, name: str) -> ModelNotFound:
        return ModelNotFound(name, ", ".join(repr(each) for each in (self._model, *self._adapters)))

    # -- with the lock held ----------------------------------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            while self._abandoned:
                self._abandoned.popleft()()
            yield

    def _is_usable(self, version: _Version | None) -> bool:
        return version is not None and version.restarts == self._client.restarts

    def _lease(self, adapter: _Adapter, path: str) -> "Future[AdapterLease]":
        """Return the lease of a version in memory, or one that waits for a load, which is started if none runs."""
        future: Future[AdapterLease] = Future()
        version = adapter.version
        if not adapter.num_loads and version is not None and self._is_usable(version):
            future.set_result(self._new_lease(adapter, version))
            return future
        adapter.waiting.append((future, path))
        if not adapter.num_loads:
            self._start_load(adapter, path or adapter.path, pinned=adapter.pinned)
        return future

    def _start_load(self, adapter: _Adapter, path: str, *, pinned: bool) -> "Future[AdapterState]":
        future: Future[AdapterState] = Future()
        adapter.num_loads += 1
        adapter.requested = path
        self._enqueue(lambda: self._load(adapter, path, pinned, future))
        return future

    def _enqueue(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        if not self._is_working:
            threading.Thread(target=self._work, name="chairlift-adapters", daemon=True).start()
            self._is_working = True

    def _new_lease(self, adapter: _Adapter, version: _Version) -> AdapterLease:
        version.num_leases += 1
        adapter.num_running += 1
        adapter.used_at = next(self._uses)

        def end() -> None:
            version.num_leases -= 1
            adapter.num_running -= 1
            adapter.used_at = next(self._uses)
            self._drop_if_unused(version)

        def release() -> None:
            with self._locked():
                end()

        return AdapterLease(version.value, release, lambda: self._abandoned.append(end))

    def _retire(self, adapter: _Adapter) -> None:
        """Take the current version from a name; it is dropped after its last lease."""
        if (version := adapter.version) is not None:
            adapter.version, version.is_current = None, False
            self._drop_if_unused(version)

    def _drop_if_unused(self, version: _Version) -> None:
        if version.is_current or version.num_leases or version not in self._versions:
            return
        self._versions.discard(version)
        if version.restarts == self._client.restarts:
            self._enqueue(lambda: self._drop(version.value.number))

    def _num_bytes(self) -> int:
        return sum(version.info.num_bytes for version in self._versions if self._is_usable(version))

    def _make_room(self, adapter: _Adapter, info: AdapterInfo) -> None:
        """Drop unused adapters, those that were used longest ago first. Raises InvalidRequest or Overloaded."""
        if self._max_bytes is None:
            return
        if info.num_bytes > self._max_bytes:
            raise InvalidRequest(
                f"the LoRA adapter {adapter.name!r} takes {info.num_bytes} bytes, the limit of all is "
                f"{self._max_bytes}; raise the limit",
                param="lora_path",
            )
        unused = [
            each for each in self._adapters.values()
            if each.version is not None and not each.version.num_leases and not each.pinned and each is not adapter
        ]  # fmt: skip
        replaced = 0
        if (version := adapter.version) is not None and not version.num_leases and self._is_usable(version):
            replaced = version.info.num_bytes
        used = self._num_bytes() - replaced - sum(each.version.info.num_bytes for each in unused if each.version)
        if used + info.num_bytes > self._max_bytes:
            raise Overloaded(
                f"the LoRA adapter {adapter.name!r} takes {info.num_bytes} bytes, and pinned and running ones take "
                f"{used} of {self._max_bytes}; try again later, or raise the limit",
                retry_after=RETRY_SECONDS,
            )
        for each in sorted(unused, key=lambda each: each.used_at):
            if self._num_bytes() - replaced + info.num_bytes <= self._max_bytes:
                break
            log.info("the LoRA adapter %s is dropped to make room for %s", each.name, adapter.name)
            self._retire(each)

    def _state(self, adapter: _Adapter) -> AdapterState:
        is_loaded = self._is_usable(adapter.version)
        return AdapterState(
            name=adapter.name, path=adapter.path, parent=self._model, pinned=adapter.pinned, is_loaded=is_loaded,
            rank=adapter.rank,
            num_bytes=adapter.version.info.num_bytes if adapter.version is not None and is_loaded else 0,
            running=adapter.num_running, waiting=len(adapter.waiting),
        )  # fmt: skip

    # -- the store's thread ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Run jobs one after another; the thread ends with the last one."""
        while True:
            with self._locked():
                if not self._jobs:
                    self._is_working = False
                    return
                job = self._jobs.popleft()
            try:
                job()
            except Exception:
                log.exception("a change of LoRA adapters failed")

    def _drop(self, number: int) -> None:
        try:
            self._client.drop_adapter(number)
        except ChairliftError as error:  # the engine has ended, and its adapters with it
            log.debug("LoRA adapter %d was not dropped: %s", number, error)

    def _load(self, adapter: _Adapter, path: str, pinned: bool, future: "Future[AdapterState]") -> None:
        """Load a version and pass it to the requests that wait for the name's last load."""
        number, restarts = next(self._numbers), self._client.restarts
        info: AdapterInfo | None = None
        error: ChairliftError | None = None
        try:
            info = self._client.load_adapter(number, path)
        except ModelError as failure:
            error = InvalidRequest(failure.message, param="lora_path")
        except ChairliftError as failure:
            error = failure
        except Exception as failure:
            error = InvalidRequest(f"the LoRA adapter {adapter.name!r} cannot be loaded: {failure}", param="lora_path")
        with self._locked():
            adapter.num_loads -= 1
            is_known = self._adapters.get(adapter.name) is adapter
            if info is not None and not is_known:
                error = self._not_found(adapter.name)
            elif info is not None:
                error = self._take(adapter, _Version(AdapterVersion(number, info.digest), info, restarts), path, pinned)
            if info is not None and error is not None:
                self._enqueue(lambda: self._drop(number))
            if error is not None and is_known and not adapter.was_loaded and not adapter.num_loads:
                del self._adapters[adapter.name]
            state = self._state(adapter)
            if error is not None and not adapter.num_loads:
                adapter.requested = adapter.path
            ready = self._ready(adapter)
        for lease, value in ready:
            if value is None:
                _fail(lease, error or _replaced(adapter))
            else:
                _complete(lease, value)
        if not future.set_running_or_notify_cancel():
            return
        if error is None:
            future.set_result(state)
        else:
            future.set_exception(error)

    def _take(self, adapter: _Adapter, version: _Version, path: str, pinned: bool) -> ChairliftError | None:
        """Make a loaded version the current one; returns why it cannot be."""
        try:
            self._make_room(adapter, version.info)
        except ChairliftError as error:
            return error
        self._retire(adapter)
        self._versions.add(version)
        adapter.version, adapter.path, adapter.pinned = version, path, pinned
        adapter.was_loaded, adapter.rank, adapter.used_at = True, version.info.rank, next(self._uses)
        return None

    def _ready(self, adapter: _Adapter) -> "list[tuple[Future[AdapterLease], AdapterLease | None]]":
        """Return the requests that waited for a load, each with its lease; None where the load failed."""
        if adapter.num_loads:
            return []
        waiting, adapter.waiting = adapter.waiting, []
        version = adapter.version
        if version is None or not self._is_usable(version):
            return [(lease, None) for lease, _ in waiting]
        can_have = {"", adapter.path}
        return [(lease, self._new_lease(adapter, version) if path in can_have else None) for lease, path in waiting]


def _replaced(adapter: _Adapter) -> ChairliftError:
    return Overloaded(
        f"the LoRA adapter {adapter.name!r} was replaced by that of {adapter.path} while a request waited for another",
        retry_after=RETRY_SECONDS,
    )


def _complete(future: "Future[AdapterLease]", lease: AdapterLease) -> None:
    """Give a request its lease; one that was cancelled meanwhile gives it back."""
    if future.set_running_or_notify_cancel():
        future.set_result(lease)
    else:
        lease.release()


def _fail(future: "Future[AdapterLease]", error: ChairliftError) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
