"""Stand-ins for pyspark: a graph that is loaded with them is the one that is loaded with pyspark."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clew.pipeline import absent

ROOT = Path(__file__).parents[2]

#: Loads each file in a process of its own that begins with what is imported here, and tells all of its graph.
TELL = """
    import json, os, sys
    with_spark, *files = json.loads(sys.argv[1])
    from clew.pipeline.load import load
    if with_spark:
        import pyspark.pandas, pyspark.sql.functions, pyspark.sql.pandas.types
    else:
        from clew.pipeline import absent
        absent.install()

    def function(one):
        hook = getattr(one.besides.setup, "hook", None)
        return [one.name, one.style, one.window.fingerprint(), one.outputs, one.row_local,
                list(one.besides.names), getattr(hook, "__name__", None)]

    def spec(one):
        return {
            "version": one.version, "functions": [function(f) for f in one.functions], "settings": repr(one.settings),
            "inputs": {port: str(sender) for port, sender in one.inputs.items()}, "outputs": one.outputs,
            "schemas": {port: s.to_string(show_schema_metadata=True) for port, s in one.schemas.items()},
            "built_in": one.built_in, "general": type(one.general).__name__,
        }

    for file in files:
        if os.fork():
            os.wait()
            continue
        try:
            graph = load(file).graph()
            told = {name: spec(one) for name, one in graph.operators.items()}
            print(json.dumps([graph.fingerprint, told, repr(graph.captures), graph.groups]), flush=True)
        except Exception as error:
            print(json.dumps(str(error)), flush=True)
        os._exit(0)
"""


def python(code: str, *given: str) -> str:
    """Run code in a Python of its own, and return what it prints."""
    command = [sys.executable, "-c", textwrap.dedent(code), *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(with_spark: bool, files: Mapping[str, Path]) -> dict[str, Any]:
    """Return all that the graphs of some files tell, by their names."""
    lines = python(TELL, json.dumps([with_spark, *map(str, files.values())])).splitlines()
    assert len(lines) == len(files)
    return dict(zip(files, map(json.loads, lines)))


def written(directory: Path, files: Mapping[str, str]) -> Path:
    directory.mkdir()
    for name, text in files.items():
        (directory / name).write_text(textwrap.dedent(text))
    return directory / "pipeline.py"


def shipped() -> dict[str, Path]:
    """Return the pipelines of the examples and of the tutorial."""
    examples = {str(file.relative_to(ROOT)): file for file in sorted(ROOT.glob("examples/*/pipeline.py"))}
    files = sorted(ROOT.glob("docs/tutorial/*.py"))
    return examples | {file.name: file for file in files if "Pipeline(" in file.read_text()}


SOURCE = """
    import pyarrow as pa
    from clew import Count, Operator, Pipeline, generator, sqlite
    pipeline = Pipeline("p")
    def make(index: int) -> pa.Table:
        return pa.table({"n": [index]})
    numbers = pipeline.source("numbers", generator(make, 10))
"""

#: Files as users write them, and worse.
NASTY = {
    "annotations": {
        "pipeline.py": SOURCE
        + """
    import pyspark
    import pyspark.sql as sql
    from pyspark import sql as other
    from pyspark.sql import DataFrame
    from pyspark.sql.dataframe import DataFrame as Defined
    from pyspark.sql import Column, SparkSession
    from typing import Optional

    @pipeline.operator(numbers)
    def one(df: DataFrame) -> DataFrame:
        return df
    @pipeline.operator(numbers)
    def two(df: sql.DataFrame) -> "sql.DataFrame":
        return df
    @pipeline.operator(numbers, outputs=("a", "b"))
    def three(df: Defined) -> dict[str, Defined]:
        return {"a": df, "b": df}
    @pipeline.operator(numbers, window=Count(3), row_local=True)
    def four(df: pyspark.sql.DataFrame) -> list[pyspark.sql.dataframe.DataFrame]:
        return [df]
    def key(column: Column | None, spark: Optional[SparkSession] = None) -> Column:
        return column if isinstance(column, Column) else None
    @pipeline.operator(numbers)
    def five(df: other.DataFrame):
        return df.where(key(df.n)) if issubclass(Defined, DataFrame) else SparkSession
    assert isinstance(pyspark.__version__, str)
    """
    },
    "names": {
        "pipeline.py": SOURCE
        + """
    from pyspark.sql import DataFrame, Window, functions, Row
    from pyspark.sql.functions import col, column, power, sum as total
    from pyspark.sql.functions import max as highest
    from pyspark.storagelevel import StorageLevel
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException, PySparkException
    import beside, functools

    low, high, here = Window.unboundedPreceding, Window.unboundedFollowing, Window.currentRow
    parted, first = Window.partitionBy, functools.partial(col, "n")
    KEPT, ROW = StorageLevel.MEMORY_ONLY, Row(a=1)
    BY_NAME = {"sum": total, "max": highest, "rows": [functions.count, Row]}

    class Wrong(AnalysisException):
        pass

    @pipeline.operator(numbers)
    def named(df: DataFrame) -> DataFrame:
        try:
            return df.select(col("n"), column("n"), power("n", 2), functions.lit(low), first(), beside.twice("n"))
        except (AnalysisException, PySparkException, Py4JJavaError, Wrong):
            return BY_NAME["sum"](parted("n").rowsBetween(low, here), high, KEPT, ROW)
    """,
        "beside.py": """
    import pyspark.sql.functions as F
    from pyspark.sql.functions import lit
    def twice(name: str) -> F.Column:
        return F.col(name) * lit(2)
    """,
    },
    "stars": {
        "pipeline.py": SOURCE
        + """
    from pyspark.sql import *
    from pyspark.sql.functions import *
    from pyspark.sql.types import *
    SHAPE = StructType([StructField("n", LongType())])
    OTHER = LongType()
    SAME = LongType()
    @pipeline.operator(numbers)
    def starred(df: DataFrame) -> DataFrame:
        return df.select(upper(col("n")), from_json("n", SHAPE), abs("n"), lit(OTHER), lit(SAME), Window)
    """
    },
    "decorated": {
        "pipeline.py": SOURCE
        + """
    import functools
    from pyspark.sql import DataFrame, functions as F
    from pyspark.sql.functions import pandas_udf, udf, udtf
    from pyspark.sql.types import IntegerType, LongType
    import pandas as pd
    RATE = 3

    @udf
    def bare(text):
        return again(text) if text else "x" * RATE
    @F.udf(returnType=IntegerType())
    def counted(text: str) -> int:
        return len(text) + RATE
    @pandas_udf(LongType())
    def plus(values: pd.Series) -> pd.Series:
        return values + RATE
    again = udf(lambda text: bare(text))
    random = F.udf(lambda: 4, IntegerType()).asNondeterministic()
    partly = F.udf(functools.partial(pow, 2), IntegerType())

    @udtf(returnType="a int")
    class Split:
        def eval(self, text: str):
            yield RATE,

    @pipeline.operator(numbers)
    def uses(df: DataFrame) -> DataFrame:
        return df.select(bare("n"), counted("n"), plus("n"), again("n"), random(), partly("n"), Split("n"))

    @pipeline.operator(numbers)
    @udf
    def itself(df: DataFrame) -> DataFrame:
        return df.limit(RATE)
    """
    },
    "schemas": {
        "pipeline.py": SOURCE
        + """
    from pyspark.sql import DataFrame
    from pyspark.sql import types as T
    from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
    FLAT = [
        T.NullType(), T.BooleanType(), T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType(), T.FloatType(),
        T.DoubleType(), T.StringType(), T.BinaryType(), T.DateType(),
        T.TimestampType(), T.TimestampNTZType(), T.DayTimeIntervalType(), T.TimeType(), T.DecimalType(),
        T.DecimalType(12, 2), T.ArrayType(T.LongType()), T.ArrayType(T.StringType(), False),
        T.MapType(T.StringType(), T.ArrayType(T.LongType())),
        T.MapType(T.StringType(), T.StringType(), valueContainsNull=False),
    ]
    KINDS = [to_arrow_type(kind, timezone="UTC") for kind in FLAT]
    INNER = T.StructType([T.StructField("x", T.DoubleType(), False)])
    SHAPE = T.StructType([T.StructField("n", T.LongType(), nullable=False, metadata={"unit": "m"})])
    SHAPE = SHAPE.add("s", "string").add("t", "timestamp_ntz", False).add(T.StructField("inner", INNER))
    WIDE = T.StructType([T.StructField(f"c{i}", kind) for i, kind in enumerate(FLAT[1:14])])
    NAMES = [SHAPE.names, SHAPE.fieldNames(), [one.name for one in SHAPE], len(SHAPE), SHAPE["n"].nullable]
    PART = [SHAPE[0].metadata, [one.name for one in SHAPE[1:]], bool(SHAPE)]

    @pipeline.operator(numbers, schema=to_arrow_schema(SHAPE))
    def shaped(df: DataFrame) -> DataFrame:
        return df.sparkSession.createDataFrame([], SHAPE) if NAMES and KINDS and PART else to_arrow_schema(INNER)
    @pipeline.operator(numbers, schema={"out": to_arrow_schema(WIDE, timezone="UTC")})
    def wide(table: pa.Table) -> pa.Table:
        return table
    """
    },
    "classes": {
        "pipeline.py": SOURCE
        + """
    from abc import ABC
    from dataclasses import dataclass, field
    from pyspark.sql import types as T, DataFrame
    from pyspark.sql.datasource import DataSource, DataSourceReader
    from pyspark.sql.types import DataType, LongType
    import pyspark.pandas as ps

    class Mine(DataSource, ABC):
        def __init__(self, options):
            self.options = options
        def reader(self, schema: T.StructType) -> DataSourceReader:
            return Reader()
    class Reader(DataSourceReader):
        def read(self, partition):
            yield 1,
    MINE = Mine({"a": 1})

    @dataclass(frozen=True)
    class Typed:
        kind: DataType
        other: DataType | None = None
        more: dict[DataType, str] = field(default_factory=dict)
    TYPED = Typed(LongType(), None, {LongType(): "n"})

    def on_pandas(frame: ps.DataFrame, series: "ps.Series[int]") -> ps.DataFrame:
        return frame
    class Gather(Operator):
        def __init__(self, kind):
            self.kind, self.schema = kind, LongType()
        def initial(self):
            return {"k": 0}
        def assign(self, event, state):
            state["k"] += 1
            return [state["k"] // 3]
        def ready(self, state, opened):
            return [key for key in opened if isinstance(self.kind, LongType)]
        def generate(self, input_set, context):
            return pa.table({"n": [1]}) if MINE.options and TYPED and on_pandas and Mine else None
    gathered = pipeline.general("gather", Gather(LongType()), numbers)
    pipeline.sink(gathered, sqlite("sink.db", table="t"), name="keep")

    if __name__ == "__main__":
        from pyspark.sql import SparkSession
        SparkSession.builder.getOrCreate()
    """
    },
}


def test_a_graph_is_the_same_with_pyspark_and_with_stand_ins(tmp_path: Path) -> None:
    files = shipped() | {name: written(tmp_path / name, texts) for name, texts in NASTY.items()}
    with_spark, with_stand_ins = told(True, files), told(False, files)
    for name in files:
        assert with_stand_ins[name] == with_spark[name], name
    assert len(files) >= 15
    styles = {f[1] for graph in with_spark.values() for spec in graph[1].values() for f in spec["functions"]}
    assert styles == {"arrow", "dataframe", "general"}


def test_every_name_that_pyspark_exports_reads_alike() -> None:
    names = """
        import importlib, json, sys
        modules = ["pyspark.sql", "pyspark.sql.functions", "pyspark.sql.types", "pyspark.sql.window", "pyspark.errors"]
        from clew.pipeline.code import digest_of
        if sys.argv[1] == "absent":
            from clew.pipeline import absent
            absent.install()
        for one in map(importlib.import_module, modules):
            print(json.dumps({name: digest_of(getattr(one, name)) for name in one.__all__}))
    """
    read = python(names, "absent").splitlines()
    assert read == python(names, "real").splitlines()
    functions = json.loads(read[1])
    # Three have a second name.
    assert len(set(functions.values())) == len(functions) - 3 > 400


COMPUTED = """
    from pyspark.sql import Column, SparkSession, Window, functions as F
    from pyspark.sql.types import LongType
    ordered = Window.partitionBy("x").orderBy(F.desc("y")).rowsBetween(-1, Window.currentRow)
    wanted = (F.col("a") > 1) & ~(F.col("b") == "x") | (1 - F.col("c")[0].d.isNull())
    known = {F.col("a"): wanted, LongType(): ordered, Column: 1}
    builder = SparkSession.builder.appName("x").config("a", "b")
    spark = SparkSession.getActiveSession()
    registered = F.udf("int")(lambda x: x)("a")
    @F.pandas_udf("long")
    def plus(values):
        return values
    assert plus.__name__ == "plus" and plus and plus.returnType is not None
    from pyspark.errors import PySparkValueError
    class Own(PySparkValueError):
        pass
    try:
        raise Own("x") if known else PySparkValueError(errorClass="X", messageParameters={})
    except PySparkValueError as error:
        assert str(error) == "x"
"""

IMPORTS = """
    import pyspark
    from pyspark.sql import SparkSession, functions as F, types as T
    from pyspark.sql.pandas.types import to_arrow_type
"""

#: Lines that need Spark, and what is said to be asked of it.
ASKING = {
    "SparkSession.builder.appName('x').getOrCreate()": "pyspark.sql.SparkSession.builder.appName().getOrCreate()",
    "pyspark.SparkContext('local')": "pyspark.SparkContext()",
    "[one for one in F.col('a')]": "what pyspark.sql.functions.col() is",
    "F.col('a') == 1 or None": "what pyspark.sql.functions.col() is",
    "to_arrow_type(T.VariantType())": "what pyspark.sql.types.VariantType() is in Arrow",
    "to_arrow_type(T.LongType(), prefers_large_types=True)": "an Arrow type with prefers_large_types",
}


def test_a_file_may_compute_with_spark_while_it_is_imported_but_ask_it_nothing(tmp_path: Path) -> None:
    texts = {line: f"{SOURCE}{IMPORTS}\n    x = {line}\n" for line in ASKING} | {"computed": SOURCE + COMPUTED}
    said = told(False, {line: written(tmp_path / str(i), {"pipeline.py": texts[line]}) for i, line in enumerate(texts)})
    computed = said.pop("computed")
    assert list(computed[1]) == ["numbers"], computed
    for line, asked in ASKING.items():
        assert f"{asked} is asked of Spark while the file is imported, expected a file that only declares" in said[line]
        assert 'put this under if __name__ == "__main__", or into a function' in said[line]
        assert line in said[line]


def test_stand_ins_are_refused_where_pyspark_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", ModuleType("pyspark"))
    with pytest.raises(AssertionError, match="pyspark is imported already, expected a process without it"):
        absent.install()


#: What a process that has groups of a pipeline and no Spark imports, the largest it can be.
CONTROL = """
    import importlib, json, pkgutil, sys
    from clew.pipeline import absent
    absent.install()
    from clew import runtime
    for module in pkgutil.iter_modules(runtime.__path__):
        importlib.import_module(f"clew.runtime.{module.name}")
    import clew.store.postgres, clew.supervisor.threads, pyarrow.flight
    from clew.pipeline.load import load
    graph = load("examples/sales/pipeline.py").graph()
    assert [spec.version for spec in graph.operators.values()]
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    print(json.dumps([sorted(sys.modules), int(lines["VmHWM"].split()[0]) / 1024]))
"""
#: What is large, and of no use where no record is touched.
LARGE = {
    "pandas", "pyarrow.acero", "pyarrow.dataset", "pyarrow.fs", "pyarrow.parquet", "deltalake", "httpx", "rich",
    "typer", "pydantic", "prometheus_client", "openlineage", "pyspark.context", "pyspark.core", "py4j",
}  # fmt: skip


def test_a_process_without_spark_imports_nothing_large_and_stays_below_its_bound() -> None:
    modules, megabytes = json.loads(python(CONTROL))
    assert not LARGE.intersection(modules)
    assert "pyspark.sql.functions" in modules
    assert megabytes < 120


def test_who_declares_does_not_pay_for_drivers_that_he_does_not_use() -> None:
    modules = python("import sys; from clew import Pipeline, files; print(*sys.modules)").split()
    assert not (LARGE | {"psycopg", "pyspark"}).intersection(modules)
