"""Judges: what a correct run is, and whether a run was one; shares no code with what it judges."""
