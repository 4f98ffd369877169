"""Live overhead: what watchers of the live data cost a busy engine, in rounds with and without watchers."""
