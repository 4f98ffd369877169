"""EngineClient: the protocol of an engine, in a thread of this process or in a process of its own."""
