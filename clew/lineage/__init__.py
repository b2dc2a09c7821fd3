"""Asks where an event came from, and where it went (LOG.io, Sections 1.3 and 7.3)."""
