"""What the engine keeps of its speed behind its server: one workload in turns, in a process and over HTTP."""
