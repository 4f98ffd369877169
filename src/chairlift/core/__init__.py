"""core: value types, errors and validation that every package imports; standard library only."""
