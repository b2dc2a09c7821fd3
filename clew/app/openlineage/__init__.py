"""Tells a collector of OpenLineage what a run reads, makes and writes, from outside the run."""
