"""State that several routers share: tenants' limits, sessions and ejections; in memory or in Redis."""
