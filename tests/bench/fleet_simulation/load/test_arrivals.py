"""ArrivalSource: every request is sent once."""

from chairlift.bench.fleet_simulation.load.arrivals import ArrivalSource
from chairlift.bench.fleet_simulation.load.synthetic_arrivals import ArrivalOptions, draw_arrivals


def test_a_source_sends_every_request_once() -> None:
    arrivals = draw_arrivals(ArrivalOptions(kind="poisson", rate=1.0, requests=20, period_seconds=1.0))
    source, sent = ArrivalSource(arrivals), []
    while source.next_at < float("inf"):
        sent.append(source.take())
    assert [each.arrived_at for each in sent] == arrivals.at.tolist()
    assert [(each.index, each.prompt_tokens) for each in sent] == list(enumerate(arrivals.prompt_tokens))
