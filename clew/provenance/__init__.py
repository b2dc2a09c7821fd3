"""Asks where a record came from."""
