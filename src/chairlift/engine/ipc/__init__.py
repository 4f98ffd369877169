"""The border between an engine in a process of its own and its clients: messages, sockets, who lives and who waits."""
