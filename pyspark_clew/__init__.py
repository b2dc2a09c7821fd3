"""Makes `spark.read.format("clew")` work: PySpark looks for data sources in packages named `pyspark_...`."""

from clew.tables import DefaultSource

__all__ = ["DefaultSource"]
