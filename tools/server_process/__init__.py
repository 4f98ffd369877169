"""The servers of the tools: starts one in a process of its own, waits until it is ready, and measures the process."""
