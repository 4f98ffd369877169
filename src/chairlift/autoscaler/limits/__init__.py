"""What limits a target: budget, schedules, steps, stabilisation and the headroom of the replicas that remain."""
