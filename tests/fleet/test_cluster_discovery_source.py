"""ClusterSource: the first list and each change reach every reader."""

import asyncio

from chairlift.fleet.cluster_discovery_source import ClusterSource
from chairlift.router.endpoint import Endpoint
from support_server import run

A, B = Endpoint(url="http://a"), Endpoint(url="http://b")


def test_a_reader_waits_for_the_first_list_and_gets_each_change_once() -> None:
    async def scenario() -> None:
        source = ClusterSource()
        watching = source.watch()
        first = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0)
        assert not first.done()
        source.set([])
        assert await first == ()
        source.set([A])
        assert await anext(watching) == (A,)
        source.set([A])
        second = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0)
        assert not second.done()
        source.set([A, B])
        assert await second == (A, B)

    run(scenario())


def test_a_new_reader_gets_the_list_at_once() -> None:
    async def scenario() -> None:
        source = ClusterSource()
        source.set([B])
        assert await anext(source.watch()) == (B,)

    run(scenario())
