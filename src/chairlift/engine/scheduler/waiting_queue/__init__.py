"""Waiting queues: the order in which waiting sequences are scheduled, one file for each policy."""
