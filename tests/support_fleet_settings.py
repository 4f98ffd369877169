"""VALUES: a value for each setting of the autoscaler and of its replicas, none of them a default."""

from typing import Any

VALUES: dict[str, Any] = {
    "min_replicas": 2, "max_replicas": 9, "target_wait": 3.0, "target_concurrency": 11.0, "target_kv_usage": 0.5,
    "slo_ttft_ms": 900.0, "slo_itl_ms": 80.0, "slo_quantile": 0.9, "target_cpu": 0.6, "target_memory": 0.7,
    "target_gpu": 0.75, "scale_interval": 1.5, "stable_window": 40.0, "panic_window": 4.0, "scale_down_delay": 100.0,
    "reversal_delay": 200.0, "scale_to_zero_after": 50.0, "cold_start": 12.0, "max_cost_per_hour": 30.0,
    "replica_price": {"big": 3.0}, "replica_type": "big", "schedule": ["0 8 * * 1-5; 0 18 * * 1-5; 3; Europe/Berlin"],
    "scaling": "threshold", "dry_run": True, "replica_option": ["dtype=bfloat16", "no-enable-prefix-caching"],
    "replica_config": "replica.yaml", "replica_cpus": 2, "replica_gpus": 1, "gpu_ids": "0, 1",
    "replica_ports": "8101-8109", "state_dir": "state", "keep_replicas": True, "cluster": "local",
    "cluster_token_file": "token", "cluster_tls_ca": "ca", "cluster_tls_cert": "cert", "cluster_tls_key": "key",
    "fleet_name": "blue", "replica_drain_timeout": 5.0,
    "scale_up_limit": ["3/30"], "scale_down_limit": ["0.5x/60"], "threshold_cpu": "0.2:0.6",
    "threshold_memory": "off", "threshold_queue": "2:20", "replica_start_timeout": 6.0,
    "replica_unresponsive_timeout": 7.0,
}  # fmt: skip
