"""tenant_limiter.py: local limits first, then those of all routers; nothing is left of a rejected request."""

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.errors import RateLimited
from chairlift.router.shared_state import tenant_limiter
from chairlift.router.shared_state.base import ChargeOutcome, ChargeReply, TenantCharge, TenantSnapshot
from chairlift.router.shared_state.tenant_limiter import SharedTenantLimiter, SharedTenantReservation
from chairlift.web import tenant_rate_limiter
from chairlift.web.tenant_limits import TenantLimits
from chairlift.web.tenant_rate_limiter import MAX_TENANTS, TenantRateLimiter, TenantReservation
from support_shares import FULL

LIMITS = TenantLimits(tenant_requests_per_minute=10, tenant_tokens_per_minute=1000, tenant_max_open_requests=4)
T = TypeVar("T")
Call = tuple[str, str, TenantCharge | TenantSnapshot]


class ScriptedTable:
    """A table that records its calls and replies as a test says.

    Attributes:
        epoch: number of the connection; 0 is unavailable.
        calls: name, tenant and amounts of each call.
        reply: reply to each charge.
        before_reply: is called before each reply.
    """

    def __init__(self) -> None:
        self.epoch = 1
        self.calls: list[Call] = []
        self.reply = ChargeReply(ChargeOutcome.TAKEN)
        self.before_reply: Callable[[], None] = lambda: None
        self.sources: list[tuple[Callable[[], Iterable[str]], Callable[[str], None]]] = []

    async def charge(self, tenant: str, limits: TenantLimits, charge: TenantCharge) -> ChargeReply:
        self.calls.append(("charge", tenant, charge))
        await asyncio.sleep(0)
        self.before_reply()
        return self.reply

    def apply(self, tenant: str, limits: TenantLimits, charge: TenantCharge) -> None:
        self.calls.append(("apply", tenant, charge))

    def reconcile(self, tenant: str, limits: TenantLimits, snapshot: TenantSnapshot) -> None:
        self.calls.append(("reconcile", tenant, snapshot))

    def add_source(self, tenants: Callable[[], Iterable[str]], reconcile: Callable[[str], None]) -> None:
        self.sources.append((tenants, reconcile))

    def take_calls(self) -> list[Call]:
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(100.0)


@pytest.fixture
def table() -> ScriptedTable:
    return ScriptedTable()


@pytest.fixture
def limiter(table: ScriptedTable, clock: FakeClock) -> SharedTenantLimiter:
    return SharedTenantLimiter(LIMITS, table, clock)


def begin(limiter: SharedTenantLimiter, tokens: int = 0, tenant: str = "t") -> SharedTenantReservation:
    return asyncio.run(limiter.begin(tenant, tokens))


def attempt(action: Callable[[], T]) -> T | RateLimited:
    """Return an action's result, or its error."""
    try:
        return action()
    except RateLimited as error:
        return error


def open_until_full(limiter: SharedTenantLimiter, tenant: str = "t") -> int:
    """Begin requests until one is rejected; return how many were accepted."""
    for number in range(100):
        try:
            begin(limiter, tenant=tenant)
        except RateLimited:
            return number
    raise AssertionError("no limit")


def test_a_router_that_is_alone_limits_as_the_local_limiter_does(clock: FakeClock) -> None:
    """3,000 seeded operations on both have the same results."""

    async def run() -> None:
        rng = random.Random(9)
        shared, local = SharedTenantLimiter(LIMITS, None, clock), TenantRateLimiter(LIMITS, clock)
        pairs: list[tuple[SharedTenantReservation, TenantReservation]] = []
        for _ in range(3000):
            clock.advance(rng.random() * 4)
            tokens, kind = rng.choice([0, 10, 500]), rng.choice(["begin", "begin", "reserve", "end", "refund"])
            if kind == "begin":
                result = attempt(lambda tokens=tokens: local.begin("t", tokens))  # type: ignore[misc]
                if isinstance(result, RateLimited):
                    with pytest.raises(RateLimited) as caught:
                        await shared.begin("t", tokens)
                    assert (caught.value.message, caught.value.details) == (result.message, result.details)
                else:
                    pairs.append((await shared.begin("t", tokens), result))
            elif pairs and kind == "reserve":
                mine, theirs = rng.choice(pairs)
                if isinstance(attempt(lambda each=theirs, tokens=tokens: each.reserve(tokens)), RateLimited):  # type: ignore[misc]
                    with pytest.raises(RateLimited):
                        await mine.reserve(tokens)
                else:
                    await mine.reserve(tokens)
            elif pairs:
                mine, theirs = pairs.pop(rng.randrange(len(pairs)))
                if kind == "refund":
                    mine.refund_request()
                    theirs.refund_request()
                mine.end(tokens)
                theirs.end(tokens)
            assert pairs == [] or shared._local.usages["t"].open == len(pairs)

    asyncio.run(run())


def test_each_step_of_a_request_is_charged(limiter: SharedTenantLimiter, table: ScriptedTable) -> None:
    async def run() -> None:
        reservation = await limiter.begin("t", 20)
        await reservation.reserve(100)
        reservation.refund_request()
        reservation.end(70)

    asyncio.run(run())
    assert table.calls == [
        ("charge", "t", TenantCharge(requests=1, tokens=20, open=1)),
        ("charge", "t", TenantCharge(tokens=100)),
        ("apply", "t", TenantCharge(requests=-1)),
        ("apply", "t", TenantCharge(tokens=-50, open=-1)),
    ]


def test_a_request_above_the_local_limits_is_rejected_without_a_call(
    limiter: SharedTenantLimiter, table: ScriptedTable
) -> None:
    assert open_until_full(limiter) == 4
    assert [name for name, _, _ in table.calls] == ["charge"] * 4


@pytest.mark.parametrize(
    ("reply", "message", "details"),
    [
        (ChargeReply(ChargeOutcome.OPEN_LIMIT, 5.0), "5 of your requests are open, the limit is 4", {}),
        (
            ChargeReply(ChargeOutcome.REQUESTS_LIMIT, 3.5),
            "your requests of this minute are used up, the limit is 10 per minute",
            {"retry_after": 3.5},
        ),
        (
            ChargeReply(ChargeOutcome.TOKENS_LIMIT, 2.5),
            "your tokens of this minute are used up, the limit is 1000 per minute",
            {"retry_after": 2.5},
        ),
    ],
)
def test_a_rejection_by_all_routers_reads_as_a_local_one_and_leaves_nothing(
    limiter: SharedTenantLimiter, table: ScriptedTable, reply: ChargeReply, message: str, details: dict[str, float]
) -> None:
    table.reply = reply
    for _ in range(30):
        with pytest.raises(RateLimited) as caught:
            begin(limiter, 600)
        assert (caught.value.message, caught.value.details) == (message, details)
    table.reply = ChargeReply(ChargeOutcome.TAKEN)
    assert open_until_full(limiter) == 4


def test_a_rejected_reserve_leaves_the_request_as_it_was(limiter: SharedTenantLimiter, table: ScriptedTable) -> None:
    async def run() -> None:
        reservation = await limiter.begin("t", 100)
        table.reply = ChargeReply(ChargeOutcome.TOKENS_LIMIT, 2.5)
        for _ in range(5):
            with pytest.raises(RateLimited):
                await reservation.reserve(900)
        reservation.end(100)

    asyncio.run(run())
    assert table.calls[-1] == ("apply", "t", TenantCharge(tokens=0, open=-1))
    assert limiter._local.usages["t"].tokens.in_use(100.0) == 100  # type: ignore[union-attr]


def test_a_cancelled_begin_leaves_nothing(limiter: SharedTenantLimiter) -> None:
    async def run() -> None:
        for _ in range(20):
            task = asyncio.create_task(limiter.begin("t", 500))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert open_until_full(limiter) == 4


def test_an_unavailable_table_leaves_the_local_limits(limiter: SharedTenantLimiter, table: ScriptedTable) -> None:
    table.epoch = 0
    assert open_until_full(limiter) == 4
    assert table.calls == []


def test_what_was_used_in_an_outage_is_reported_once_before_the_next_charge(
    limiter: SharedTenantLimiter, table: ScriptedTable, clock: FakeClock
) -> None:
    first = begin(limiter, 100)
    table.epoch = 0
    begin(limiter, 200)
    second = begin(limiter, 250)
    second.end(150)
    clock.advance(6)  # refills 1 of the 2 unshared requests, and 100 of the 350 tokens
    table.epoch, table.calls = 2, []
    first.end(100)
    snapshot = TenantSnapshot(
        open=2,
        requests_in_use=pytest.approx(2.0),
        tokens_in_use=pytest.approx(350.0),
        unshared_requests=pytest.approx(1.0),
        unshared_tokens=pytest.approx(250.0),
    )
    assert table.take_calls() == [("reconcile", "t", snapshot), ("apply", "t", TenantCharge(tokens=0, open=-1))]
    begin(limiter)
    assert [name for name, _, _ in table.take_calls()] == ["charge"]
    table.epoch = 3
    begin(limiter)
    (_, _, again), _ = table.take_calls()
    assert isinstance(again, TenantSnapshot)
    assert (again.open, again.unshared_requests, again.unshared_tokens) == (2, 0.0, 0.0)


def test_a_call_that_gets_no_reply_is_decided_locally_and_reported_later(
    limiter: SharedTenantLimiter, table: ScriptedTable
) -> None:
    table.reply = ChargeReply(ChargeOutcome.UNAVAILABLE)
    table.before_reply = lambda: setattr(table, "epoch", 0)
    begin(limiter, 100)
    table.epoch, table.reply, table.before_reply, table.calls = 2, ChargeReply(ChargeOutcome.TAKEN), lambda: None, []
    begin(limiter, 1)
    snapshot = TenantSnapshot(
        open=1, requests_in_use=1, tokens_in_use=100, unshared_requests=1, unshared_tokens=100
    )  # fmt: skip
    assert table.calls[0] == ("reconcile", "t", snapshot)


def test_a_table_that_returns_during_a_call_counts_its_request_once(
    limiter: SharedTenantLimiter, table: ScriptedTable
) -> None:
    """The report of the new epoch has the open request already, so only the amounts of the minute are added."""

    def reconnect() -> None:
        table.epoch = 2
        for tenants, reconcile in table.sources:
            for tenant in tenants():
                reconcile(tenant)

    table.reply, table.before_reply = ChargeReply(ChargeOutcome.UNAVAILABLE), reconnect
    begin(limiter, 100)
    (_, _, snapshot), applied = table.calls[1:]
    assert isinstance(snapshot, TenantSnapshot) and snapshot.open == 1
    assert applied == ("apply", "t", TenantCharge(requests=1, tokens=100))


def test_a_tenant_without_usage_is_not_reported(limiter: SharedTenantLimiter, table: ScriptedTable) -> None:
    for tenants, reconcile in table.sources:
        assert list(tenants()) == []
        reconcile("new")
    begin(limiter, tenant="new")
    assert [name for name, _, _ in table.calls] == ["charge"]


def test_without_limits_nothing_is_sent_until_there_are_some(clock: FakeClock, table: ScriptedTable) -> None:
    limiter = SharedTenantLimiter(TenantLimits(), table, clock)
    first = begin(limiter, 5)
    second = begin(limiter, 5)
    second.end(5)
    assert table.calls == []
    limiter.renew(LIMITS)
    begin(limiter, 10)
    assert table.take_calls() == [
        ("reconcile", "t", TenantSnapshot(open=1)),
        ("charge", "t", TenantCharge(requests=1, tokens=10, open=1)),
    ]
    limiter.renew(TenantLimits())
    first.end(5)
    limiter.renew(LIMITS)
    begin(limiter)
    (_, _, snapshot), _ = table.take_calls()
    assert isinstance(snapshot, TenantSnapshot) and snapshot.open == 1


def test_renewed_limits_hold_in_an_outage_too(limiter: SharedTenantLimiter, table: ScriptedTable) -> None:
    table.epoch = 0
    begin(limiter, 100)
    limiter.renew(TenantLimits(tenant_max_open_requests=2, tenant_tokens_per_minute=2000))
    assert limiter.limits.tenant_max_open_requests == 2
    assert open_until_full(limiter) == 1
    table.epoch = 2
    with pytest.raises(RateLimited):
        begin(limiter)
    snapshot = TenantSnapshot(open=2, tokens_in_use=100, unshared_tokens=100)
    assert table.take_calls() == [("reconcile", "t", snapshot)]


def test_memory_is_bounded_by_the_number_of_tenants(
    clock: FakeClock, table: ScriptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    max_tenants = MAX_TENANTS if FULL else 500
    for module in (tenant_limiter, tenant_rate_limiter):
        monkeypatch.setattr(module, "MAX_TENANTS", max_tenants)

    async def run() -> None:
        limiter = SharedTenantLimiter(LIMITS, table, clock)
        kept = await limiter.begin("kept")
        for epoch in (1, 0):
            table.epoch = epoch
            for number in range(2 * max_tenants + 10):
                (await limiter.begin(f"{number}")).end(0)
                table.calls.clear()
        assert len(limiter._unshared) <= max_tenants
        assert len(limiter._reconciled) <= 2 * max_tenants
        assert "kept" in limiter._reconciled
        kept.end(0)

    asyncio.run(run())
