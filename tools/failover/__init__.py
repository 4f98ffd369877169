"""The failover test: replicas are lost while a router streams from them, and no client may notice."""
