"""HTTP overhead: runs one workload in alternation on an engine without a server and on a server over HTTP."""
