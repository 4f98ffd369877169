"""Busy machine: a server beside processes that use all of its processors (`make busy-machine`)."""
