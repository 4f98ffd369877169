"""ClientSession: what an engine process keeps about one client."""

from dataclasses import dataclass, field

from chairlift.engine.client.base import OutputSink
from chairlift.engine.ipc.liveness_limits import SilenceTimer
from chairlift.engine.ipc.output_queue import OutputQueue
from chairlift.engine.ipc.step_stats_queue import StepStatsQueue


@dataclass(slots=True, eq=False)
class ClientSession:
    """The state of one connected client.

    Attributes:
        identity: the socket identity of the client.
        number: position in the order of connection.
        interval: seconds between two heartbeats, and between two checks of its output queue.
        silence_limit: seconds of silence after which it is disconnected.
        silence: how long it has sent nothing.
        heartbeat_at: latest time of the next heartbeat to it.
        sink: receives the outputs of its requests, one list a step.
        output_queue: outputs not sent yet; the engine thread adds to it, and waits above its high-water mark.
        num_unread: messages with outputs that the client has not acknowledged.
        is_flush_scheduled: whether a flush follows: soon, or after the next acknowledgement.
        engine_ids: its open requests: client id -> engine id.
        adapters: the LoRA adapters that it has loaded: its own number -> the engine's number.
        next_flush_at: earliest time of the next outputs.
        steps: while it watches, step stats not sent yet; they go out with its outputs, else with a heartbeat.
    """

    identity: bytes
    number: int
    interval: float
    silence_limit: float
    silence: SilenceTimer
    heartbeat_at: float
    sink: OutputSink
    output_queue: OutputQueue = field(default_factory=OutputQueue)
    num_unread: int = 0
    is_flush_scheduled: bool = False
    next_flush_at: float = 0.0
    engine_ids: dict[str, str] = field(default_factory=dict)
    adapters: dict[int, int] = field(default_factory=dict)
    steps: StepStatsQueue | None = None
