"""A small replica for tests of clusters: `python support_ray_replica.py serve [MODEL] --host H --port 0`.

The environment says what it does: FAKE_EXIT ends it at once with this code, FAKE_DRAIN is the time of its drain in
seconds, FAKE_DEAF=1 ignores SIGTERM. It answers each GET with its arguments and process id.

With FAKE_ENGINE it becomes a whole server over a fake engine; the value has the options of replica_main.py.
"""

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"arguments": sys.argv[1:], "pid": os.getpid(), "tag": os.environ.get("FAKE_TAG")}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> int:
    if "FAKE_EXIT" in os.environ:
        sys.stderr.write("model folder not found: /nowhere\n")
        return int(os.environ["FAKE_EXIT"])
    if "FAKE_ENGINE" in os.environ:
        program = str(Path(__file__).with_name("replica_main.py"))
        os.execv(sys.executable, [sys.executable, program, os.environ["FAKE_ENGINE"]])
    host = sys.argv[sys.argv.index("--host") + 1]
    server = ThreadingHTTPServer((host, 0), Handler)

    def drain() -> None:
        time.sleep(float(os.environ.get("FAKE_DRAIN", "0")))
        server.shutdown()

    def stop(*_: Any) -> None:
        if os.environ.get("FAKE_DEAF") != "1":
            threading.Thread(target=drain).start()

    signal.signal(signal.SIGTERM, stop)
    sys.stderr.write(f"listening on http://{host}:{server.server_address[1]}\n")
    sys.stderr.flush()
    server.serve_forever(0.05)
    return 0


if __name__ == "__main__":
    sys.exit(main())
