"""Decisions about ids: scheduler, paged cache, loop, and the clients that call them. No torch, no HTTP."""
