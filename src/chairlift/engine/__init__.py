"""Decisions about ids: scheduler, paged cache, loop, and the clients that speak to them. No torch, no HTTP."""
