"""Clusters: where replicas run, and who starts and stops them: processes here, Ray, Kubernetes or a webhook."""
