"""Wires the log as tables of Spark: `spark.read.format("clew")`."""

from functools import partial

from clew.spark.tables import LogTables, Opens


class DefaultSource(LogTables):
    """The data source `clew`. PySpark finds it by the package `pyspark_clew`, if that can be imported from a path.

    Where it does not, `spark.dataSource.register(DefaultSource)` makes it known to a session.
    """

    def place(self, pipeline: str, log: str | None, bodies: str | None) -> tuple[Opens, str | None]:
        # PySpark imports this module to see what data sources there are, also for who then uses another one.
        from clew.place import Log

        place = Log.at(log, pipeline, bodies)
        # Executors may run in another directory, and Spark ends them without a word.
        place = place.anywhere()
        return partial(place.visit, pipeline), place.bodies


__all__ = ["DefaultSource"]
