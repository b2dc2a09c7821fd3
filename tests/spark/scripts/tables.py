"""`tables.py URL PIPELINE`: reads the log as tables, in a session of Spark's own defaults that nobody told of Clew."""

import json
import sys

from pyspark.sql import SparkSession

if __name__ == "__main__":
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    reader = spark.read.format("clew").option("log", sys.argv[1]).option("pipeline", sys.argv[2])
    count = reader.option("table", "records").option("port", "numbers").load().count()
    spark.stop()
    print(json.dumps(count))
