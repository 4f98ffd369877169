"""Scheduler: chooses which sequences run in each step and how many tokens each of them gets."""
