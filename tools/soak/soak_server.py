"""SoakServer: the server under test, with its key file and its folder for temporary files."""

import sys
from pathlib import Path

from chairlift.web.auth.api_keys import key_line
from server_process.server_process import ServerProcess

ADMIN_KEY = "the-soak-admin"
KEYS = {"the-soak-of-alice": "alice", "the-soak-of-bob": "bob", "the-soak-of-carol": "carol"}
"""API key -> tenant."""

OPTIONS = (
    "--num-blocks", "1024", "--max-waiting-requests", "24", "--write-timeout", "3", "--body-timeout", "2",
    "--idle-timeout", "10", "--log-level", "info", "--log-file-size", "5MB", "--log-backups", "1",
)  # fmt: skip


class SoakServer:
    """A server that was started with a key file. All its files, also temporary ones, are in one folder.

    Attributes:
        process: its process.
        folder: the folder of its files.
        key_file: the file with the keys of KEYS and ADMIN_KEY.
        temp_folder: the folder of its temporary files.
    """

    def __init__(self, folder: Path) -> None:
        """Start the server."""
        self.folder = folder
        self.key_file = folder / "keys.txt"
        self.temp_folder = folder / "tmp"
        self.temp_folder.mkdir(parents=True, exist_ok=True)
        self.write_keys()
        command = [sys.executable, "-m", "chairlift", "serve", "--port", "0", "--key-file", str(self.key_file),
                   "--log-file", str(folder / "server.log"), *OPTIONS]  # fmt: skip
        environ = {"TMPDIR": str(self.temp_folder)}
        self.process = ServerProcess(command, folder / "server.txt", environ=environ)

    def write_keys(self, *, broken: bool = False) -> None:
        """Write the key file, or an invalid one."""
        lines = [key_line(key, tenant) for key, tenant in KEYS.items()]
        lines.append(key_line(ADMIN_KEY, "operator", admin=True))
        new_file = self.folder / "keys.new"
        new_file.write_text("this is no key file\n" if broken else "\n".join(lines) + "\n", encoding="utf-8")
        new_file.replace(self.key_file)  # atomic: the server never reads a partial file
