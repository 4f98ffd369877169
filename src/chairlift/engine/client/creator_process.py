"""CreatorProcess: the process in which an engine's threads run; a fork has no threads and cannot use the engine."""

import os

from chairlift.core.errors import EngineDead


class CreatorProcess:
    """Remembers the process that creates this object.

    What a fork inherits of an engine is a copy without threads, perhaps with locks that are held for ever. So the
    check comes before every lock, and a fork leaves everything alone that belongs to its parent's engine.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_this(self) -> bool:
        """Whether this is the process, not a fork of it."""
        return self._pid == os.getpid()

    @property
    def fork_error(self) -> EngineDead | None:
        """The error of all use in a fork; None in the process itself."""
        if self.is_this:
            return None
        return EngineDead(
            f"this process was forked from process {self._pid}, and the threads of that process's engine do not run "
            'here: load the model in this process, start it with the multiprocessing method "spawn", or use a server'
        )

    def check(self) -> None:
        """Raise EngineDead in a fork."""
        if (error := self.fork_error) is not None:
            raise error
