"""Health of replicas: active probes, passive outcomes, latency outliers, and their notifications."""
