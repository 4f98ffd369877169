"""Discovery: finds the replicas in flags, files, DNS, Consul, etcd and Kubernetes."""
