"""made, measured: a ServerBenchmark of a server, before and after its run."""

from chairlift.bench.offline.run_spec import WorkloadSpec
from chairlift.bench.server.api_requests import PreparedRequests, RequestFormat
from chairlift.bench.server.benchmark_plan import BenchmarkPlan
from chairlift.bench.server.http_client import Client
from chairlift.bench.server.server_address import Address
from chairlift.bench.server.server_benchmark import ServerBenchmark

UNIFORM = WorkloadSpec(name="uniform")


async def measured(
    url: str, plan: BenchmarkPlan, spec: WorkloadSpec = UNIFORM, said: list[str] | None = None
) -> ServerBenchmark:
    client = Client(Address.of(url))
    serving = made(client, plan, spec, said)
    try:
        await serving.check_reachable()
        await serving.run()
    finally:
        client.close()
    return serving


def made(
    client: Client, plan: BenchmarkPlan, spec: WorkloadSpec = UNIFORM, said: list[str] | None = None
) -> ServerBenchmark:
    style = RequestFormat(model="fake")
    return ServerBenchmark(
        plan, client, PreparedRequests(spec, 128, style, client), [].append if said is None else said.append
    )
