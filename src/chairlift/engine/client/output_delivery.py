"""call_sinks: passes the engine's outputs to the sinks of their requests; a sink that raises harms no other one."""

import logging
from collections.abc import Iterable

from chairlift.core.engine_output import EngineOutput
from chairlift.engine.client.base import OutputSink

log = logging.getLogger(__name__)


def call_sinks(outputs: Iterable[tuple[OutputSink, EngineOutput]]) -> None:
    """Call each sink once with all of its outputs, in order; log the exception of a sink that raises.

    All outputs are taken before the first sink is called.
    """
    by_sink: dict[int, tuple[OutputSink, list[EngineOutput]]] = {}
    for sink, output in outputs:
        by_sink.setdefault(id(sink), (sink, []))[1].append(output)
    for sink, sink_outputs in by_sink.values():
        try:
            sink(sink_outputs)
        except Exception:
            log.exception("a sink raised")
