"""redis_scripts.py: the scripts agree with the limits in web/tenant_rate_limiter.py, operation for operation."""

import random
from collections.abc import Callable

import pytest
from redis import Redis

from chairlift.core.clock import FakeClock
from chairlift.core.errors import RateLimited
from chairlift.router.shared_state.redis_scripts import CHARGE, END_LEASE, RECONCILE, RENEW_LEASE, SCRIPTS
from chairlift.web.tenant_limits import TenantLimits
from chairlift.web.tenant_rate_limiter import TenantRateLimiter, TenantReservation
from chairlift.web.token_bucket import TokenBucket
from support_services_redis import RedisServer

TIME_CALL = "redis.call('TIME')"
TENANT, LEASES, EJECTIONS = "tenant:t", "leases", "ejections"
LIMITS = TenantLimits(tenant_requests_per_minute=60, tenant_tokens_per_minute=600, tenant_max_open_requests=2)


class ScriptedRedis:
    """Runs scripts on a real server at the time of a fake clock."""

    def __init__(self, server: RedisServer, clock: FakeClock) -> None:
        self.client = Redis(host="127.0.0.1", port=server.port, decode_responses=True)
        self.clock = clock

    def run(self, script: str, keys: list[str], arguments: list[object]) -> list[str]:
        timed = script.replace(TIME_CALL, "{ARGV[#ARGV], '0'}")
        words = [str(argument) for argument in [*arguments, repr(self.clock.now())]]
        reply: list[str] = self.client.eval(timed, len(keys), *keys, *words)  # type: ignore[assignment,misc]
        return reply

    def lease(self, owner: str, seconds: float = 1e9, *, former: str = "", is_new: bool = True) -> list[str]:
        keys = [LEASES, EJECTIONS, "generation"]
        return self.run(RENEW_LEASE, keys, [owner, seconds, "1" if is_new else "0", former, f"made by {owner}"])

    def charge(
        self, owner: str, limits: TenantLimits, requests: int, tokens: int, num_open: int, mode: str = "check"
    ) -> tuple[str, float]:
        arguments = [owner, mode, *words_of(limits), requests, tokens, num_open]
        outcome, value = self.run(CHARGE, [TENANT, LEASES], arguments)
        return outcome, float(value)

    def reconcile(self, owner: str, limits: TenantLimits, num_open: int, *amounts: float) -> None:
        assert self.run(RECONCILE, [TENANT, LEASES], [owner, *words_of(limits)[:2], num_open, *amounts])[0] == "taken"


def words_of(limits: TenantLimits) -> list[str]:
    values = (limits.tenant_requests_per_minute, limits.tenant_tokens_per_minute, limits.tenant_max_open_requests)
    return ["" if value is None else repr(value) for value in values]


@pytest.fixture
def redis(server: RedisServer) -> ScriptedRedis:
    return ScriptedRedis(server, FakeClock(1_700_000_000.0))


def random_limits(rng: random.Random) -> TenantLimits:
    return TenantLimits(
        tenant_requests_per_minute=rng.choice([None, 0.5, 3, 60.5, 6000]),
        tenant_tokens_per_minute=rng.choice([None, 100, 5000.25, 1e6]),
        tenant_max_open_requests=rng.choice([None, 1, 3, 20]),
    )


def expected(action: Callable[[], object]) -> tuple[str, float]:
    """Run an action of the limiter in Python; return what the script must reply."""
    try:
        action()
    except RateLimited as error:
        if "open" in error.message:
            return "open_limit", float(error.message.split()[0])
        return ("requests_limit" if "requests of this" in error.message else "tokens_limit"), float(
            error.details["retry_after"] or 0
        )
    return "taken", 0.0


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
def test_5000_operations_end_as_they_do_in_python(redis: ScriptedRedis, seed: int) -> None:
    """Two routers share in Redis what is one limiter in Python; limits change, disappear and return."""
    rng, clock = random.Random(seed), redis.clock
    limits = random_limits(rng)
    python = TenantRateLimiter(limits, clock)
    for owner in ("a.1", "b.1"):
        redis.lease(owner)
    reservations: list[tuple[str, TenantReservation]] = []
    outcomes = dict.fromkeys(("taken", "open_limit", "requests_limit", "tokens_limit"), 0)
    for _ in range(5000):
        clock.advance(rng.choice([0.0, rng.random() * 0.1, rng.random(), rng.random() * 30]))
        kind = rng.choice(["begin", "begin", "begin", "reserve", "refund", "end", "end", "limits"])
        if kind == "limits" and rng.random() < 0.1:
            limits = random_limits(rng)
            python.renew(limits)
            redis.charge("a.1", limits, 0, 0, 0, "apply")  # Redis learns a limit from the tenant's next charge
        elif kind == "begin":
            owner, tokens = rng.choice(["a.1", "b.1"]), rng.choice([0, 1, 40, 3000])
            result = expected(
                lambda tokens=tokens, owner=owner: reservations.append((owner, python.begin("t", tokens)))
            )  # type: ignore[misc]
            assert redis.charge(owner, limits, 1, tokens, 1) == (
                result[0],
                pytest.approx(result[1], rel=1e-6, abs=1e-6),
            )
            outcomes[result[0]] += 1
        elif reservations:
            owner, reservation = position = rng.choice(reservations)
            tokens = rng.choice([0, 5, 700])
            if kind == "reserve":
                result = expected(lambda tokens=tokens, each=reservation: each.reserve(tokens))  # type: ignore[misc]
                reply = redis.charge(owner, limits, 0, tokens, 0)
                assert reply == (result[0], pytest.approx(result[1], rel=1e-6, abs=1e-6))
                outcomes[result[0]] += 1
            elif kind == "refund":
                reservation.refund_request()
                redis.charge(owner, limits, -1, 0, 0, "apply")
            elif kind == "end":
                reservations.remove(position)
                redis.charge(owner, limits, 0, tokens - reservation.reserved_tokens, -1, "apply")
                reservation.end(tokens)
    assert min(outcomes.values()) > 50, outcomes
    num_open = sum(int(value) for name, value in redis.client.hgetall(TENANT).items() if name.startswith("open:"))  # type: ignore[union-attr]
    assert num_open == python.usages["t"].open == len(reservations)


def test_every_script_reads_the_servers_clock_at_most_once() -> None:
    assert [script.count(TIME_CALL) for script in SCRIPTS] == [0 if script == END_LEASE else 1 for script in SCRIPTS]


def test_the_open_requests_of_a_dead_router_vanish_within_its_lease(redis: ScriptedRedis) -> None:
    redis.lease("dead.1", 10)
    redis.lease("alive.1")
    assert redis.charge("dead.1", LIMITS, 1, 0, 1)[0] == redis.charge("dead.1", LIMITS, 1, 0, 1)[0] == "taken"
    redis.clock.advance(9.99)
    assert redis.charge("alive.1", LIMITS, 1, 0, 1) == ("open_limit", 2.0)
    redis.clock.advance(0.02)
    assert redis.charge("alive.1", LIMITS, 1, 0, 1)[0] == "taken"
    assert "open:dead.1" not in redis.client.hgetall(TENANT)  # type: ignore[operator]


def test_a_router_without_a_lease_changes_nothing(redis: ScriptedRedis) -> None:
    redis.lease("a.1", 10)
    redis.clock.advance(10)
    assert redis.charge("a.1", LIMITS, 1, 5, 1) == ("lease_lost", 0.0)
    assert redis.charge("a.1", LIMITS, 1, 5, 1, "apply") == ("lease_lost", 0.0)
    assert redis.lease("a.1", is_new=False)[0] == "lease_lost"
    assert redis.client.exists(TENANT) == 0


def test_a_renewed_lease_lasts_and_a_new_epoch_ends_the_former_one(redis: ScriptedRedis) -> None:
    redis.lease("a.1", 10)
    for _ in range(5):
        redis.clock.advance(9)
        assert redis.lease("a.1", 10, is_new=False)[0] == "taken"
    redis.lease("a.2", 10, former="a.1")
    assert redis.charge("a.1", LIMITS, 1, 0, 1)[0] == "lease_lost"
    assert redis.charge("a.2", LIMITS, 1, 0, 1)[0] == "taken"


def test_the_generation_stays_until_all_data_is_lost(redis: ScriptedRedis) -> None:
    assert [redis.lease(owner)[1] for owner in ("a.1", "b.1", "a.2")] == ["made by a.1"] * 3
    redis.client.flushall()
    assert [redis.lease(owner)[1] for owner in ("b.2", "a.3")] == ["made by b.2"] * 2


def test_a_lost_bucket_is_restored_and_a_kept_one_loses_only_what_was_unshared(redis: ScriptedRedis) -> None:
    """The level after a reconciliation is the lower one of the two: kept minus unshared, full minus in use."""
    redis.lease("a.1")
    for kept_use, unshared, in_use, left in ((0, 100, 400, 200), (300, 100, 400, 200), (300, 100, 100, 200)):
        redis.client.delete(TENANT)
        redis.charge("a.1", LIMITS, 0, kept_use, 0, "apply")
        redis.reconcile("a.1", LIMITS, 1, 0, 0, unshared, in_use)
        assert redis.charge("a.1", LIMITS, 0, left + 1, 0)[0] == "tokens_limit", (kept_use, unshared, in_use)
        assert redis.charge("a.1", LIMITS, 0, left, 0)[0] == "taken"


def test_a_reconciliation_sets_the_open_requests_of_its_router_only(redis: ScriptedRedis) -> None:
    redis.lease("a.1")
    redis.lease("b.1")
    redis.charge("b.1", LIMITS, 0, 0, 1)
    redis.reconcile("a.1", LIMITS, 7, 0, 0, 0, 0)
    redis.reconcile("a.1", LIMITS, 1, 0, 0, 0, 0)
    assert redis.charge("b.1", LIMITS, 0, 0, 1) == ("open_limit", 2.0)
    redis.reconcile("a.1", LIMITS, 0, 0, 0, 0, 0)
    assert redis.charge("b.1", LIMITS, 0, 0, 1)[0] == "taken"


def test_a_clock_that_goes_back_takes_no_tokens_away(redis: ScriptedRedis) -> None:
    """A promoted replica's clock may be behind the old master's."""
    redis.lease("a.1")
    redis.charge("a.1", LIMITS, 0, 500, 0)
    redis.clock = FakeClock(redis.clock.now() - 3600)
    assert redis.charge("a.1", LIMITS, 0, 100, 0)[0] == "taken"
    redis.clock.advance(10)
    assert redis.charge("a.1", LIMITS, 0, 100, 0)[0] == "taken"
    assert redis.charge("a.1", LIMITS, 0, 100, 0) == ("tokens_limit", pytest.approx(10.0))


def test_a_tenants_hash_expires_when_its_buckets_are_full_but_not_within_a_day(redis: ScriptedRedis) -> None:
    redis.lease("a.1")
    redis.charge("a.1", LIMITS, 1, 0, 0)
    assert redis.client.ttl(TENANT) == pytest.approx(86400, abs=5)  # type: ignore[arg-type]
    slow = TenantLimits(tenant_requests_per_minute=1e-4)
    redis.charge("a.1", slow, 2, 0, 0, "apply")
    bucket = TokenBucket(1e-4, 0.0)
    bucket.take(2, 0.0)
    assert redis.client.ttl(TENANT) >= bucket.seconds_until(1, 0.0) - 60 > 86400  # type: ignore[operator]
