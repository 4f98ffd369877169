"""RankMain: the process of one rank but rank 0, started by `python -m chairlift.model.distributed.rank_main`.

    main thread     runs the calls of rank 0 in their order
    reader thread   reads them from standard input; at its end, and at that of rank 0, it ends the process at once
    beat thread     reports the progress of the main thread every second

Reports go to standard output. Logs, and the output of the runner, go to standard error.
"""

import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue

from chairlift.core.errors import EngineDead
from chairlift.engine.gc_tuning import tune_gc
from chairlift.model.backends.communicator import Communicator
from chairlift.model.config.device_option import pick_device
from chairlift.model.distributed.frames import read_frame, write_frame
from chairlift.model.distributed.rank_messages import (
    Call,
    CallFailed,
    Collect,
    Collected,
    FromRank,
    Launch,
    Loading,
    Masks,
    PeersLost,
    Progress,
    RankStartFailed,
    ReleaseBlocks,
    Started,
    StartRank,
    ToRank,
    Warmup,
    decode_to_rank,
    encode,
)
from chairlift.model.distributed.rank_process import SEND_SECONDS
from chairlift.model.distributed.tensor_parallel_runner import digest
from chairlift.model.runner.torch_runner import TorchRunner
from chairlift.model.weights.shard import Shard

log = logging.getLogger(__name__)

EXIT_SECONDS = 2
"""Seconds that the process may take to remove the folder when rank 0 has ended."""

REMOVE_TRIES = 10


class RankMain:
    """The main thread of a rank's process."""

    def __init__(self, source: int, target: int) -> None:
        """Read calls from one descriptor, write reports to another."""
        self._source, self._target = source, target
        self._calls: SimpleQueue[ToRank] = SimpleQueue()
        self._folder: Path | None = None
        self._communicator: Communicator | None = None
        self._report_lock = threading.Lock()

    def run(self) -> int:
        """Start the rank and run calls until the process ends; returns the exit code of one that cannot go on."""
        threading.Thread(target=self._read, args=(os.getppid(),), name="chairlift-calls", daemon=True).start()
        start = self._calls.get()
        assert isinstance(start, StartRank), "the first message starts the rank"
        logging.getLogger("chairlift").setLevel(start.log_level)
        if start.import_path:
            sys.path[:] = map(os.fsdecode, start.import_path)
        try:
            self._report(Loading())
            threading.Thread(target=self._beat, args=(start.beat_seconds,), name="chairlift-beat", daemon=True).start()
            shard = Shard(start.rank, start.num_ranks)
            communicator = Communicator(shard, Path(start.meeting_file), pick_device(start.config.device))
            self._communicator = communicator
            runner = TorchRunner(start.config, communicator=communicator)
            runner.start()
            tune_gc()
        except EngineDead as error:
            self._report(PeersLost(error.message))
            return 1
        except Exception as error:
            self._report(RankStartFailed.of(error))
            return 1
        self._report(Started())
        call = 0
        while communicator.failure is None:
            message = self._calls.get()
            call += 1
            assert not isinstance(message, StartRank), "the rank has started"
            self._run_call(runner, communicator, call, message)
        self._report(PeersLost(communicator.failure.message))
        return 1

    def _run_call(self, runner: TorchRunner, communicator: Communicator, call: int, message: Call) -> None:
        """Run one call and report its digest or its error; nothing is reported of a failed collective."""
        try:
            match message:
                case Launch(plan):
                    runner.launch(plan)
                case Masks(step_id, masks):
                    runner.supply_masks(step_id, masks)
                case Collect():
                    result = runner.collect()
                    self._report(Collected(call, digest(result)))
                case Warmup():
                    runner.warmup()
                case ReleaseBlocks(num_kept, moves):
                    runner.release_blocks(num_kept, moves)
        except Exception as error:
            if communicator.failure is None:
                self._report(CallFailed(call, communicator.num_calls, repr(error)))

    def _report(self, message: FromRank, seconds: float = SEND_SECONDS) -> None:
        with self._report_lock:
            write_frame(self._target, encode(message), seconds)

    def _beat(self, seconds: float) -> None:
        """Report the progress until the process ends, except while rank 0 does not read; a frame is never divided."""
        while True:
            communicator = self._communicator
            with contextlib.suppress(EngineDead):
                self._report(Progress(0 if communicator is None else communicator.num_calls), 0.0)
            time.sleep(seconds)

    def _read(self, parent: int) -> None:
        """Queue the messages of rank 0 until its end, then end this process, whatever it does."""
        try:
            while (content := read_frame(self._source, parent)) is not None:
                message = decode_to_rank(content)
                if isinstance(message, StartRank):
                    self._folder = Path(message.meeting_file).parent
                self._calls.put(message)
        except Exception:
            log.exception("a call of rank 0 cannot be read")
        # Without the folder torch's file store waits in its constructor and lets no thread of Python run: then the
        # system ends the process.
        signal.alarm(EXIT_SECONDS)
        for _ in range(REMOVE_TRIES):  # torch may make its file there meanwhile
            if self._folder is None or not self._folder.exists():
                break
            shutil.rmtree(self._folder, ignore_errors=True)  # rank 0 may have been killed
        os._exit(0)


def main() -> int:
    """Run the rank that standard input describes; returns the exit code."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for signal_number in (signal.SIGINT, signal.SIGTERM):  # rank 0 handles them: they may reach the whole group
        signal.signal(signal_number, signal.SIG_IGN)
    source, target = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as null_file:
        os.dup2(null_file.fileno(), 0)
    os.dup2(2, 1)
    os.set_blocking(target, False)
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s rank[%(process)d] %(levelname)s %(message)s"
    )
    return RankMain(source, target).run()


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    except Exception:
        log.exception("the process of a rank ended with an error")
    finally:
        logging.shutdown()
        os._exit(code)  # a collective that hangs must not keep the process alive
