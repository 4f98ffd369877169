"""Mutants: faults put into copies of the source one at a time, each of which the tests of its folders must see.

mutants.toml lists them. `make mutants` shows whether a change of the tests, such as a smaller share of the cases, has
lost a class of faults.
"""
