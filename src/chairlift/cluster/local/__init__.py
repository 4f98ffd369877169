"""LocalCluster and its parts: replicas are processes of this machine and outlive their controller."""
