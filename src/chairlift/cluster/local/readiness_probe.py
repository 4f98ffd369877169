"""is_serving: whether a replica on this machine answers its readiness check."""

import asyncio

PROBE_SECONDS = 1.0
MAX_STATUS_BYTES = 4096


async def is_serving(host: str, port: int, path: str, timeout_seconds: float = PROBE_SECONDS) -> bool:
    """Return whether GET of the path is answered with status 200 in time."""
    writer = None
    try:
        async with asyncio.timeout(timeout_seconds):
            reader, writer = await asyncio.open_connection(host, port, limit=MAX_STATUS_BYTES)
            name = f"[{host}]" if ":" in host else host
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n".encode())
            status = (await reader.readline()).split()
    except (OSError, TimeoutError, ValueError):  # ValueError: the first line is too long
        return False
    finally:
        if writer is not None:
            writer.transport.abort()
    return len(status) >= 2 and status[0].startswith(b"HTTP/") and status[1] == b"200"
