"""Load on a real fleet: requests at given rates while replicas start, stop and are killed; each response is checked."""
