"""Summary: medians and spread of the rounds of each proxy, as fields of the report and as a table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from router_overhead.stream_load import StreamResult

DIRECT = "no proxy"
PERCENTS = (50, 99)
SATURATED_SHARE = 0.9
"""Share of its core that a saturated proxy, or a load generator that limits it, uses at least on a quiet machine."""


@dataclass(slots=True)
class ProxyRounds:
    """The measurements of one proxy, or of the replicas without one.

    Attributes:
        version: version of the proxy.
        saturated: one result for each round with the replicas waiting for the proxy.
        paced: pairs of a round at a set load: through the proxy, and at the same load without it.
        load: chunks per second that `paced` was to have.
        rss_bytes: resident memory at the end of all rounds.
    """

    version: str
    saturated: list[StreamResult] = field(default_factory=list)
    paced: list[tuple[StreamResult, StreamResult]] = field(default_factory=list)
    load: float | None = None
    rss_bytes: int | None = None

    def fields(self) -> dict[str, Any]:
        """Return the report's fields: the spread of each figure, and each round."""
        return {
            "version": self.version,
            "saturated": {
                "chunks_per_second": spread(each.chunks_per_second for each in self.saturated),
                "chunks_per_core_second": spread(each.chunks_per_core_second for each in self.saturated),
                "proxy_core_share": spread(each.proxy_core_share for each in self.saturated),
                "generator_core_share": spread(each.generator_core_share for each in self.saturated),
                "rounds": [_round(each) for each in self.saturated],
            },
            "paced": {
                "set_chunks_per_second": self.load,
                "chunks_per_second": spread(each.chunks_per_second for each, _ in self.paced),
                "chunks_per_core_second": spread(each.chunks_per_core_second for each, _ in self.paced),
                "num_first_chunks": sum(len(each.ttft_seconds) for each, _ in self.paced),
                **{
                    f"ttft_p{percent}_seconds": spread(through.ttft(percent) for through, _ in self.paced)
                    for percent in PERCENTS
                },
                **{f"added_ttft_p{each}_seconds": spread(added_ttft(self.paced, each)) for each in PERCENTS},
                "rounds": [{"through": _round(through), "direct": _round(direct)} for through, direct in self.paced],
            },
            "rss_bytes": self.rss_bytes,
        }  # fmt: skip


def added_ttft(pairs: Iterable[tuple[StreamResult, StreamResult]], percent: float) -> Iterator[float | None]:
    """Yield how much later the first chunk comes through the proxy than without it, in each round."""
    for through, direct in pairs:
        later, earlier = through.ttft(percent), direct.ttft(percent)
        yield None if later is None or earlier is None else later - earlier


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Return median, minimum and maximum of the values that are not None; None without any."""
    found = [value for value in values if value is not None]
    return {"median": median(found), "min": min(found), "max": max(found)} if found else None


def busiest_share(result: StreamResult) -> float:
    """Return the larger share of a core that proxy or load generator used."""
    return max(result.proxy_core_share or 0.0, result.generator_core_share)


def table(rounds: Mapping[str, ProxyRounds], left_out: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a table in Markdown, one for each proxy without its core, and one for each left out."""
    yield (
        "| path | chunks/s at saturation | chunks per CPU second | CPU of the proxy, of the load generator "
        "| paced at chunks/s | added TTFT p50 (ms) | added TTFT p99 (ms) | memory (MB) |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for name, each in rounds.items():
        fields = each.fields()
        saturated, paced = fields["saturated"], fields["paced"]
        shares = [saturated[f"{of}_core_share"] for of in ("proxy", "generator")]
        cells = [
            f"{name} {each.version}".strip(),
            _shown(saturated["chunks_per_second"], 0),
            _shown(saturated["chunks_per_core_second"], 0),
            ", ".join("-" if share is None else f"{share['median']:.0%}" for share in shares),
            "-" if each.load is None else f"{each.load:,.0f}",
            *(_shown(paced[f"added_ttft_p{percent}_seconds"], 2, 1000) for percent in PERCENTS),
            "-" if each.rss_bytes is None else f"{each.rss_bytes / 1e6:,.0f}",
        ]
        yield f"| {' | '.join(cells)} |"
    for name, each in rounds.items():
        shares = [share for result in each.saturated if (share := busiest_share(result)) < SATURATED_SHARE]
        if shares:
            least = f"{SATURATED_SHARE:.0%} of a core (least: {min(shares):.0%})"
            yield (
                f"{name}: in {len(shares)} of {len(each.saturated)} rounds at saturation neither the proxy nor the "
                f"load generator used {least}; other programs may have used it"
            )
    for name, reason in left_out.items():
        yield f"left out: {name}, because {reason}"


def rotated(names: Sequence[str], places: int) -> list[str]:
    """Return the names in the order of a round: each round begins with the next one."""
    places %= max(1, len(names))
    return [*names[places:], *names[:places]]


def _round(result: StreamResult) -> dict[str, Any]:
    return {
        "seconds": result.seconds, "chunks_per_second": result.chunks_per_second,
        "proxy_core_share": result.proxy_core_share, "generator_core_share": result.generator_core_share,
        "num_first_chunks": len(result.ttft_seconds),
        **{f"ttft_p{percent}_seconds": result.ttft(percent) for percent in PERCENTS},
    }  # fmt: skip


def _shown(values: Mapping[str, float] | None, digits: int, factor: float = 1.0) -> str:
    if values is None:
        return "-"
    middle, low, high = (f"{values[name] * factor:,.{digits}f}" for name in ("median", "min", "max"))
    return f"{middle} ({low} to {high})"
