"""Pool picker: a session stays on one replica, whether header, cookie or user names it."""

import pytest

from support_router import HELLO
from support_router_app import complete, routed
from support_server import run

SESSION = {"policy": "session"}


@pytest.mark.share(2)
@pytest.mark.parametrize("how", ["header", "cookie", "user"])
def test_a_session_stays_on_one_replica(how: str) -> None:
    async def scenario() -> None:
        async with routed(complete, complete, complete, session_cookie="sid", **SESSION) as fleet:
            for session in range(16):  # replicas have random ports, by which sessions are assigned
                served_by = set()
                for _ in range(3):
                    body = {**HELLO, "user": f"u{session}"} if how == "user" else HELLO
                    headers = {"header": {"x_session_id": f"s{session}"}, "cookie": {"cookie": f"sid=c{session}"}}
                    response = await fleet.post(body, **headers.get(how, {}))
                    served_by.add(response.json()["served_by"])
                assert len(served_by) == 1, served_by
            assert sum(bool(replica.requests) for replica in fleet.replicas) >= 2

    run(scenario())
