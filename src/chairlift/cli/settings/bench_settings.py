"""WORKLOAD, LOAD_SETTINGS, SIMULATED_FLEET: the settings of `bench`."""

from chairlift.cli.settings.setting_declaration import Setting
from chairlift.cli.settings.value_parsers import boolean, integer, named_shares, number, numbers, one_of, slo_limits

DEFAULT_WORKLOAD = "longtail"
WORKLOAD = (
    Setting(name="workload", default=DEFAULT_WORKLOAD,
            help="requests to run: longtail, broadtail, uniform, prefix, w1, w2, w3 or a trace FILE.jsonl; with "
            "--fleet diurnal, poisson, bursts, a trace FILE.csv or .jsonl, or conversations: shared, many_sessions, "
            "unshared, saturated"),
    Setting(name="requests", parse=integer, metavar="N", default_text="the workload's own number",
            help="number of requests"),
    Setting(name="rate", parse=number, metavar="R", default_text="all at once, or at the times of the trace",
            help="requests per second, at random times (Poisson)"),
    Setting(name="tenants", parse=named_shares, metavar="TENANT=SHARE,..",
            help="assign the requests to these tenants in proportion to their shares"),
    Setting(name="seed", parse=integer, metavar="N", default=0, help="random seed of the workload"),
)  # fmt: skip

LOAD_SETTINGS = (
    *(setting for setting in WORKLOAD if setting.name in ("workload", "seed")),
    Setting(name="rate", parse=numbers, metavar="R,..",
            help="requests per second, sent on time however slow the server is (open loop); each value is a phase"),
    Setting(name="concurrency", parse=integer, metavar="N", default_text="32; 64 with --overload",
            help="number of requests in flight; the next one is sent when one finishes (closed loop)"),
    Setting(name="overload", parse=numbers, metavar="X,..",
            help="measure the capacity, then run one phase at the capacity and one at each X times the capacity"),
    Setting(name="queueing", parse=boolean, default=False,
            help="with --overload: the server queues requests, without --max-queue-wait; how long it takes to recover "
            "is not judged"),
    Setting(name="rounds", parse=integer, metavar="N", default=1,
            help="repetitions of --overload; its criteria apply to the medians"),
    Setting(name="requests", parse=integer, metavar="N", default_text="no limit",
            help="maximum number of requests in a phase"),
    Setting(name="duration", parse=number, metavar="SECONDS", default_text="30; no limit with --requests",
            help="maximum duration of a phase in seconds"),
    Setting(name="pause", parse=number, metavar="SECONDS", default=2, help="seconds between phases"),
    Setting(name="arrivals", parse=one_of("poisson", "even"), metavar="KIND", default="poisson",
            help="times between requests at a --rate: poisson (random), even"),
    Setting(name="timeout", parse=number, metavar="SECONDS", default=120, help="time limit of a request in seconds"),
    Setting(name="slo", parse=slo_limits, metavar="ttft=S,..", default_text="the request succeeds",
            help="latency limits of a good request in seconds: ttft, tpot, itl (longest gap), e2e"),
    Setting(name="chat", parse=boolean, default=False, help="send text to /v1/chat/completions"),
    Setting(name="text", parse=boolean, default=False, help="send text instead of token ids to /v1/completions"),
    Setting(name="vocab_size", parse=integer, metavar="N", default=1000, help="generate prompts of token ids below N"),
    Setting(name="ignore_eos", parse=boolean, default=True,
            help="generate outputs of the workload's lengths, past end-of-text tokens"),
    Setting(name="openai_fields_only", parse=boolean, default=False,
            help="send OpenAI's own fields only, without ignore_eos and return_token_ids"),
    Setting(name="request_timeout_ms", parse=integer, metavar="MS", default_text="no header",
            help="milliseconds in the header x-request-timeout-ms of every request"),
    Setting(name="api_key_file", metavar="FILE", default_text="the key in CHAIRLIFT_API_KEY",
            help="file with the API key in its first line"),
)  # fmt: skip
"""The settings of `bench serve`."""


SIMULATED_FLEET = (
    Setting(name="fleet", parse=integer, metavar="N", default_text="one replica",
            help="simulate a fleet of at most N replicas behind a router, under an autoscaler"),
    Setting(name="scaling_rules", metavar="RULE,..", default="autoscaler,static,oracle,hpa,threshold",
            help="rules for the number of replicas to compare; maximum is all replicas all the time"),
    Setting(name="concurrency_ratio", parse=numbers, metavar="X,..", default="0.7,0.5,0.3",
            help="targets of the autoscaler to compare: running requests of a replica as a share of those it can run"),
    Setting(name="policy", metavar="NAME", default="prefix",
            help="routing policy; for conversations also several ones, as prefix,round_robin"),
    Setting(name="slo", parse=slo_limits, metavar="ttft=S,..", default="ttft=3,tpot=0.1",
            help="latency limits of a good request in seconds: ttft, tpot, itl (longest gap), e2e"),
    Setting(name="slo_goal", parse=number, metavar="X", default=0.99,
            help="share of the requests that are to be within the SLO"),
    Setting(name="cold_start", parse=numbers, metavar="SECONDS,..", default=60,
            help="seconds from the start of a replica until it serves; of two values, any time between them"),
    Setting(name="min_replicas", parse=integer, metavar="N", default=1, help="fewest replicas; 0 for scale to zero"),
    Setting(name="period", parse=number, metavar="SECONDS", default_text="the whole load",
            help="length of a day of --workload diurnal, or mean time between two bursts"),
    Setting(name="prompt_tokens", parse=integer, metavar="N", default=256, help="mean length of a prompt"),
    Setting(name="output_tokens", parse=integer, metavar="N", default=128, help="mean length of an output"),
    Setting(name="price", parse=number, metavar="X", default=1, help="price of a replica per hour"),
    Setting(name="processes", parse=integer, metavar="N", default_text="one per core",
            help="number of simulations that run at once; the results do not depend on it"),
)  # fmt: skip
"""The settings of `bench simulate --fleet`."""
