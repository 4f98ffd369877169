"""Settings of `serve` for a replica of a fleet."""

from chairlift.cli.settings.declaration import Setting
from chairlift.cli.settings.value_parsers import number

REGISTRATION = (
    Setting(name="register", metavar="URL",
            help="registry in which this replica registers itself for routers: etcd://HOST:2379/PREFIX or "
            "consul://HOST:8500/SERVICE"),
    Setting(name="advertise_url", metavar="URL", default_text="the scheme, address and port it listens on",
            help="URL at which routers reach this replica, as http://10.0.0.7:8000"),
    Setting(name="register_weight", parse=number, metavar="N", default=1,
            help="share of the requests that routers send to this replica, relative to the others"),
    Setting(name="register_version", metavar="TEXT", help="label of this replica for canaries, for routers"),
    Setting(name="register_zone", metavar="TEXT", help="label of the place in which this replica runs, for routers"),
)  # fmt: skip
"""Settings of a replica's registration."""
