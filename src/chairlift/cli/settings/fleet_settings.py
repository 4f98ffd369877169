"""FLEET and AUTOSCALER: the settings of `chairlift fleet` that `router` has not."""

from chairlift.cli.settings.setting_declaration import Setting
from chairlift.cli.settings.value_parsers import boolean, integer, named_shares, number, one_of

REPLICA_OPTION = Setting(
    name="replica_option", is_repeatable=True, metavar="NAME[=VALUE]",
    help="option of each replica's `chairlift serve`, as in dtype=bfloat16",
)  # fmt: skip

FLEET_SECTIONS = {
    "replicas": (
        Setting(name="min_replicas", parse=integer, metavar="N", default=1,
                help="fewest replicas; 0 stops the last one when no request has come for --scale-to-zero-after"),
        Setting(name="max_replicas", parse=integer, metavar="N", default=4,
                help="most replicas, those that start or drain included"),
        Setting(name="cluster", metavar="CLUSTER", default="local",
                help="where replicas run: local, ray, ray:HOST:PORT, ray://HOST:PORT (Ray's client), "
                "kubernetes://NAMESPACE/deployment/NAME, or the https:// URL of a webhook"),
        Setting(name="cluster_token_file", metavar="FILE", help="file with the bearer token of a webhook cluster"),
        Setting(name="cluster_tls_ca", metavar="FILE", default_text="the system's",
                help="CAs (PEM) that sign the certificate of a webhook cluster"),
        Setting(name="cluster_tls_cert", metavar="FILE",
                help="certificate chain (PEM) of this process for a webhook cluster, for mutual TLS"),
        Setting(name="cluster_tls_key", metavar="FILE", help="private key (PEM) of --cluster-tls-cert"),
        Setting(name="fleet_name", metavar="NAME", default_text="host name and port",
                help="name of the fleet on a Ray cluster; a start with the same name takes over the replicas that run"),
        REPLICA_OPTION,
        Setting(name="replica_config", metavar="FILE.yaml", help="settings file of each replica's `chairlift serve`"),
        Setting(name="replica_cpus", parse=integer, metavar="N", default=0,
                help="CPUs that each replica has for itself as far as there are enough; 0 shares all"),
        Setting(name="replica_gpus", parse=integer, metavar="N", default=0, help="GPUs of each replica"),
        Setting(name="gpu_ids", metavar="ID,..", default_text="none",
                help="GPUs of this machine that are given out, as CUDA_VISIBLE_DEVICES names them"),
        Setting(name="replica_ports", metavar="FIRST-LAST", default_text="free ones",
                help="ports of the replicas, which listen on 127.0.0.1"),
        Setting(name="state_dir", metavar="DIR", default_text="one for each port in the user's state folder",
                help="folder with the state and the logs of the replicas; the next start takes over what runs there"),
        Setting(name="keep_replicas", parse=boolean, default=False,
                help="leave the replicas running at the end, for the next start"),
    ),
    "replacing and stopping": (
        Setting(name="replica_drain_timeout", parse=number, metavar="SECONDS", default=120,
                help="seconds in which a replica that is to go may finish its requests"),
        Setting(name="replica_start_timeout", parse=number, metavar="SECONDS", default=1800,
                help="seconds in which a replica must become ready, else another one is started"),
        Setting(name="replica_unresponsive_timeout", parse=number, metavar="SECONDS", default=60,
                help="seconds after which a replica that does not answer is replaced"),
    ),
}  # fmt: skip
FLEET = tuple(setting for section in FLEET_SECTIONS.values() for setting in section)

AUTOSCALER_SECTIONS = {
    "targets": (
        Setting(name="target_wait", parse=number, metavar="SECONDS", default=1,
                help="expected wait of a new request"),
        Setting(name="target_concurrency", parse=number, metavar="N", default_text="0.7 of what a replica can run",
                help="running requests of a replica"),
        Setting(name="target_kv_usage", parse=number, metavar="X", default=0.8,
                help="share of the KV cache that requests hold, 0 to 1"),
        Setting(name="slo_quantile", parse=number, metavar="X", default=0.95,
                help="share of the requests that must meet --slo-ttft-ms and --slo-itl-ms"),
        Setting(name="target_cpu", parse=number, metavar="X", default_text="no target",
                help="share of its CPUs that a replica uses, 0 to 1"),
        Setting(name="target_memory", parse=number, metavar="X", default_text="no target",
                help="share of its memory that a replica uses, 0 to 1"),
        Setting(name="target_gpu", parse=number, metavar="X", default_text="no target",
                help="share of the time in which its GPUs work, 0 to 1"),
    ),
    "speed": (
        Setting(name="scale_interval", parse=number, metavar="SECONDS", default=2,
                help="seconds between two decisions"),
        Setting(name="stable_window", parse=number, metavar="SECONDS", default=60,
                help="seconds over which the load is averaged"),
        Setting(name="panic_window", parse=number, metavar="SECONDS", default=6,
                help="seconds over which a burst is averaged that needs twice the replicas"),
        Setting(name="scale_down_delay", parse=number, metavar="SECONDS", default=300,
                help="seconds for which the load must have been lower before replicas are stopped"),
        Setting(name="reversal_delay", parse=number, metavar="SECONDS", default=600,
                help="seconds without a decrease after an increase that took a decrease back"),
        Setting(name="scale_up_limit", is_repeatable=True, metavar="N/SECONDS", default_text="no limit",
                help="replicas that may be added in a time, as in 4/60, or a share of them, as in 0.5x/60; of several "
                "limits the most generous counts"),
        Setting(name="scale_down_limit", is_repeatable=True, metavar="N/SECONDS", default_text="no limit",
                help="the same for replicas that may be removed"),
        Setting(name="scale_to_zero_after", parse=number, metavar="SECONDS", default=600,
                help="seconds without any request after which the last replica is stopped, with --min-replicas 0"),
        Setting(name="cold_start", parse=number, metavar="SECONDS", default=60,
                help="seconds that a replica takes to start, until starts have been measured"),
    ),
    "budget and schedules": (
        Setting(name="max_cost_per_hour", parse=number, metavar="X", default_text="no limit",
                help="cost per hour that all replicas together may have"),
        Setting(name="replica_price", parse=named_shares, metavar="TYPE=X,..", default_text="none",
                help="price of a replica per hour by its type, as in default=1.2"),
        Setting(name="replica_type", metavar="TYPE", default="default", help="type of the replicas that are started"),
        Setting(name="schedule", is_repeatable=True, metavar="START;END;N[;ZONE]",
                help="at least N replicas between two times of cron expressions, as in 0 8 * * 1-5;0 18 * * 1-5;3;UTC"),
    ),
    "mode": (
        Setting(name="scaling", parse=one_of("target", "threshold"), metavar="MODE", default="target",
                help="target: follow the targets; threshold: one replica more or less at bounds (--threshold-...)"),
        Setting(name="threshold_cpu", metavar="LOW:HIGH", default="0.3:0.7",
                help="mode threshold: bounds of the average share of its CPUs that a replica uses; off leaves it out"),
        Setting(name="threshold_memory", metavar="LOW:HIGH", default="off",
                help="mode threshold: bounds of the average share of its memory that a replica uses"),
        Setting(name="threshold_queue", metavar="LOW:HIGH", default="1:10",
                help="mode threshold: bounds of the waiting requests of a replica"),
        Setting(name="dry_run", parse=boolean, default=False, help="log the decisions and change nothing"),
    ),
}  # fmt: skip
AUTOSCALER = tuple(setting for section in AUTOSCALER_SECTIONS.values() for setting in section)

AUTOSCALER_FLEET = tuple(
    setting for setting in FLEET if setting.name in (
        "min_replicas", "max_replicas", "cluster", "cluster_token_file", "cluster_tls_ca", "cluster_tls_cert",
        "cluster_tls_key", "fleet_name", "replica_option", "replica_cpus",
        "replica_gpus", "replica_start_timeout", "replica_unresponsive_timeout",
    )
)  # fmt: skip
"""The settings of FLEET that `autoscaler` has, too."""

SIGNALS = (
    Setting(name="prometheus_url", metavar="URL", help="Prometheus server of the queries, as http://prometheus:9090"),
    Setting(name="query", is_repeatable=True, metavar="NAME=PROMQL",
            help="query for one number: ttft_seconds, itl_seconds, requests_per_second, held_requests, or any other "
            "name, which needs a target"),
    Setting(name="query_target", parse=named_shares, metavar="NAME=X,..", default_text="none",
            help="value of a query's number for which one replica is enough, as in queue=8"),
)  # fmt: skip
"""The numbers that an autoscaler asks Prometheus for."""
