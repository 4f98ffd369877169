"""The process of an HTTP service: its configuration, application, sockets, signals and shutdown."""
