"""CreatorProcess: it knows a fork of its process, and says there what happened and what to do."""

import os

from chairlift.core.errors import EngineDead
from chairlift.engine.client.creator_process import CreatorProcess
from support_os_fork import run_in_fork


def test_the_process_itself_is_no_fork() -> None:
    creator = CreatorProcess()
    assert creator.is_this and creator.fork_error is None
    creator.check()


def test_a_fork_and_its_forks_raise_one_sentence_with_the_remedies() -> None:
    creator = CreatorProcess()
    message = run_in_fork(creator.check)
    assert message == (
        f"EngineDead: this process was forked from process {os.getpid()}, and the threads of that process's engine do "
        'not run here: load the model in this process, start it with the multiprocessing method "spawn", or use a '
        "server"
    )
    assert run_in_fork(lambda: run_in_fork(creator.check)) == message
    assert run_in_fork(lambda: [creator.is_this, isinstance(creator.fork_error, EngineDead)]) == [False, True]


def test_what_a_fork_creates_is_its_own() -> None:
    assert run_in_fork(lambda: CreatorProcess().is_this) is True
