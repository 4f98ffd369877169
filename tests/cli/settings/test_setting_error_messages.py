"""message_as_written: an error names the setting by its source, the flag or the variable."""

import pytest

from chairlift.cli.settings.setting_error_messages import message_as_written
from chairlift.core.errors import ConfigError
from support_cli import parse_command


@pytest.mark.share(2)
@pytest.mark.parametrize(("words", "environ", "message", "expected"), [
    (["--port", "5"], {}, "port must be free", "--port must be free"),
    (["--port", "5"], {"CHAIRLIFT_PORT": "6"}, "port must be free", "--port must be free"),
    ([], {"CHAIRLIFT_PORT": "6"}, "port must be free", "CHAIRLIFT_PORT must be free"),
    ([], {"CHAIRLIFT_PORT": "6"}, "cannot listen", "cannot listen (CHAIRLIFT_PORT)"),
    ([], {}, "port must be free", "port must be free"),
    (["--port", "5"], {}, "unknown port 5", "unknown --port 5"),
    (["--port", "5"], {}, "port needs tls_key", "--port needs --tls-key"),
    (["--port", "5"], {}, "the server has no port", "the server has no port"),
])  # fmt: skip
def test_a_setting_has_the_name_of_its_source(
    words: list[str], environ: dict[str, str], message: str, expected: str
) -> None:
    error = ConfigError(message, option="port")
    assert message_as_written(error, parse_command("serve", *words), environ) == expected
    assert message_as_written(ConfigError(message), parse_command("serve", *words), environ) == message
