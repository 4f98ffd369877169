"""SettingsReloader: reads the settings file of a running server or router again."""

import argparse
import copy
import logging
from collections.abc import Callable, Mapping, Sequence

from chairlift.cli.commands.config_validate import invalid_values
from chairlift.cli.log_setup import log_config
from chairlift.cli.router_options import router_config
from chairlift.cli.server_options import check_queue_size, engine_queue_size, server_config
from chairlift.cli.settings import settings
from chairlift.cli.settings.config_file import ConfigFile
from chairlift.cli.settings.fleet_settings import AUTOSCALER, FLEET, SIGNALS
from chairlift.cli.settings.load_settings_file import check_is_file, read_file
from chairlift.cli.settings.resolve_settings import resolve_group
from chairlift.cli.settings.router_settings import FLEET_ROUTER, ROUTER
from chairlift.cli.settings.setting_declaration import Setting
from chairlift.core.errors import ConfigError
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.service.http_process import ReloadedSettings

log = logging.getLogger(__name__)

ReadConfig = Callable[[argparse.Namespace], HttpConfig]
"""Returns the HTTP settings of arguments, which have the new settings file; raises ConfigError."""


def _fixed(*groups: Sequence[Setting]) -> tuple[Setting, ...]:
    return tuple(setting for group in groups for setting in group if not setting.is_reloadable)


FIXED_SETTINGS = _fixed((settings.MODEL,), settings.SERVER, settings.SERVE_SETTINGS, settings.LOGGING)
"""Settings of `serve` whose new values apply only at the next start."""

FIXED_ROUTER_SETTINGS = _fixed(settings.ROUTER_SERVER, ROUTER, settings.LOGGING)
"""Settings of `router` whose new values apply only at the next start."""


FIXED_FLEET_SETTINGS = _fixed(
    (settings.MODEL,), settings.ROUTER_SERVER, FLEET_ROUTER, FLEET, AUTOSCALER, SIGNALS, settings.LOGGING
)  # fmt: skip
"""Settings of `fleet` whose new values apply only at the next start."""


class SettingsReloader:
    """Reads the settings file again; the flags and variables of the start still override it."""

    def __init__(
        self, arguments: argparse.Namespace, environ: Mapping[str, str], fixed_settings: Sequence[Setting],
        read_config: ReadConfig,
    ) -> None:  # fmt: skip
        """Read with the arguments of the start; a change of `fixed_settings` is only reported."""
        self._arguments = arguments
        self._environ = environ
        self._fixed_settings, self._read_config = fixed_settings, read_config
        self._initial_file: ConfigFile = arguments.settings_file

    @classmethod
    def of_server(
        cls, arguments: argparse.Namespace, environ: Mapping[str, str], names: tuple[str, ...], max_queue_size: int
    ) -> "SettingsReloader":
        """Return the reloader of `serve`; `max_queue_size` is that of the running engine, in sequences."""

        def read_config(arguments: argparse.Namespace) -> HttpConfig:
            server = resolve_group(settings.SERVER, arguments, environ)
            config = server_config(names, server)
            # the next start would fail
            engine_queue_size(server, resolve_group(settings.SERVE_SETTINGS, arguments, environ))
            check_queue_size(max_queue_size, config.http.admission.max_waiting_requests)
            return config.http

        return cls(arguments, environ, FIXED_SETTINGS, read_config)

    @classmethod
    def of_router(cls, arguments: argparse.Namespace, environ: Mapping[str, str]) -> "SettingsReloader":
        """Return the reloader of `router`."""
        return cls(arguments, environ, FIXED_ROUTER_SETTINGS, _reader((*settings.ROUTER_SERVER, *ROUTER), environ))

    @classmethod
    def of_fleet(cls, arguments: argparse.Namespace, environ: Mapping[str, str]) -> "SettingsReloader":
        """Return the reloader of `fleet`."""
        return cls(arguments, environ, FIXED_FLEET_SETTINGS, _reader((*settings.ROUTER_SERVER, *FLEET_ROUTER), environ))

    def __call__(self) -> ReloadedSettings:
        """Return the new values, and log a warning about changes that need a restart.

        Raises ConfigError for a file with any problem.
        """
        check_is_file(self._initial_file.path, settings.CONFIG.name)
        file = read_file(self._initial_file.path)
        if self._initial_file.values and not file.values:
            raise ConfigError(
                f"{file.path} has no settings any more, so it is not applied", option=settings.CONFIG.name
            )
        for problem in invalid_values(file):
            raise ConfigError(file.format_problem(problem), option=settings.CONFIG.name)
        arguments, environ = copy.copy(self._arguments), self._environ
        arguments.settings_file = file
        try:
            config = self._read_config(arguments)
            logging_values = resolve_group(settings.LOGGING, arguments, environ)
        except argparse.ArgumentTypeError as error:
            raise ConfigError(str(error), option=settings.CONFIG.name) from None
        reloaded = ReloadedSettings(
            config=config, log=log_config(logging_values, verbose=arguments.verbose, quiet=arguments.quiet)
        )
        changed = [
            setting.dest
            for setting in self._fixed_settings
            if _value(file, setting) != _value(self._initial_file, setting)
        ]
        if changed:
            log.warning("%s: the new values of %s apply only after a restart", file.path, ", ".join(changed))
        return reloaded


def _reader(group: Sequence[Setting], environ: Mapping[str, str]) -> ReadConfig:
    """Return what reads the HTTP settings of a router's settings."""
    return lambda arguments: router_config(resolve_group(group, arguments, environ)).http


def _value(file: ConfigFile, setting: Setting) -> object:
    read = file.read(setting)
    return None if read is None else read[0]
