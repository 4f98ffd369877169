"""The rules of deploy/prometheus, with shorter times for tests."""
