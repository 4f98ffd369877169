"""ROUTER: the settings of `chairlift router` that `serve` has not."""

from chairlift.cli.settings.setting_declaration import Setting
from chairlift.cli.settings.value_parsers import boolean, integer, number

ROUTER_SECTIONS = {
    "replicas": (
        Setting(name="replica", is_repeatable=True, metavar="URL",
                help="URL of a replica, as in http://10.0.0.7:8000;weight=2;models=a,b"),
        Setting(name="discovery", is_repeatable=True, metavar="SOURCE",
                help="find replicas by file:FILE.yaml, dns://, dns+srv://, consul://, etcd:// or kubernetes://"),
        Setting(name="empty_grace", parse=number, metavar="SECONDS", default=60,
                help="seconds after which an empty list of a source is believed"),
        Setting(name="replica_key_file", metavar="FILE",
                help="file with the API key of the replicas in its first line"),
        Setting(name="replica_admin_key_file", metavar="FILE",
                help="file with the admin key of the replicas, so that administrators read them through the router"),
        Setting(name="replica_tls_ca", metavar="FILE", default_text="the system's",
                help="CAs (PEM) that sign the replicas' certificates"),
        Setting(name="replica_tls_cert", metavar="FILE", help="certificate chain (PEM) of the router, for mutual TLS"),
        Setting(name="replica_tls_key", metavar="FILE", help="private key (PEM) of --replica-tls-cert"),
    ),
    "routing": (
        Setting(name="policy", metavar="NAME", default="prefix",
                help="how a replica is chosen: prefix, least_connections, round_robin, weighted, random, "
                "power_of_two, session, ip_hash, lora"),
        Setting(name="model_route", is_repeatable=True, metavar="NAME=MODEL:SHARE,..",
                help="alias of a model, or shares of several: chat=llama-70b:95,llama-70b-next:5"),
        Setting(name="session_header", metavar="NAME", default="x-session-id",
                help="request header that keeps a session on one replica"),
        Setting(name="session_cookie", metavar="NAME", help="cookie that keeps a session on one replica"),
    ),
    "attempts": (
        Setting(name="max_attempts", parse=integer, metavar="N", default=3,
                help="failed attempts after which a request fails"),
        Setting(name="connect_timeout", parse=number, metavar="SECONDS", default=2,
                help="seconds in which a connection to a replica must open"),
        Setting(name="first_token_timeout", parse=number, metavar="SECONDS", default=60,
                help="seconds in which a replica must send the first token, or a Chairlift server a comment, else "
                     "another one is tried"),
        Setting(name="inter_token_timeout", parse=number, metavar="SECONDS", default=30,
                help="seconds between two tokens, or since a comment of a Chairlift server, after which another "
                     "replica goes on with the response"),
        Setting(name="hold_timeout", parse=number, metavar="SECONDS", default=0,
                help="seconds for which requests wait while no replica is ready; 0 rejects them at once"),
        Setting(name="hedging", parse=boolean, default=False,
                help="send a request whose first token is late to a second replica, too"),
    ),
    "health": (
        Setting(name="probe_interval", parse=number, metavar="SECONDS", default=5,
                help="seconds between two health checks of a replica"),
        Setting(name="probe_timeout", parse=number, metavar="SECONDS", default=2,
                help="seconds in which a health check must be answered"),
        Setting(name="max_failures", parse=integer, metavar="N", default=3,
                help="failed requests in a row after which a replica is ejected"),
        Setting(name="recovery_timeout", parse=number, metavar="SECONDS", default=30,
                help="seconds for which a replica is ejected the first time"),
        Setting(name="slow_start", parse=number, metavar="SECONDS", default=30,
                help="seconds in which the share of a returned replica grows to its full weight"),
        Setting(name="notify_url", metavar="URL", help="POST every change of a replica's state to this URL as JSON"),
    ),
    "shared state": (
        Setting(name="shared_state", metavar="URL", default_text="in memory",
                help="share tenant limits, sessions and ejections with other routers by redis:// or redis+sentinel://"),
        Setting(name="shared_state_password_file", metavar="FILE",
                help="file with the password of Redis in its first line, read again for each connection"),
        Setting(name="shared_state_sentinel_password_file", metavar="FILE",
                help="file with the password of the Sentinels in its first line, read again for each connection"),
        Setting(name="shared_state_tls_ca", metavar="FILE", default_text="the system's",
                help="CAs (PEM) that sign the certificates of Redis and its Sentinels"),
    ),
}  # fmt: skip
"""The settings by the section that they have in --help."""

ROUTER = tuple(setting for section in ROUTER_SECTIONS.values() for setting in section)

REPLICA_ACCESS = tuple(setting for setting in ROUTER if setting.name.startswith("replica_"))
"""The settings of ROUTER by which replicas are reached."""

FLEET_ROUTER = tuple(
    setting for setting in ROUTER if setting.name not in ("replica", "discovery", "empty_grace")
)  # fmt: skip
"""The settings of ROUTER that `fleet` has, too: it knows its replicas."""
