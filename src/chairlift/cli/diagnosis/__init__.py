"""Reading and checking of live servers, routers and fleets, for `doctor --url` and `debug-dump`."""
