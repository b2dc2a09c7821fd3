"""Cures that several connectors name: what helps when a run has logged what is wrong already."""

#: The types of columns are stored with the run, and its ports are fixed to them.
DECLARED_ANEW = "with schema=, and start a new run with --fresh: this one keeps the types that it began with"


def before_the_sink(what: str) -> str:
    """Return the cure for records that a sink refuses: they are logged, so only a new run can have others."""
    return f"{what} in the function before, and start a new run with --fresh: the records of this one are logged"
