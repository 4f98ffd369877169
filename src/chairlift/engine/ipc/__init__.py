"""IPC between an engine process and its clients: messages, sockets, liveness and backpressure."""
