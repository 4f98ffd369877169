"""Commands of `chairlift bench`: one module for each."""
