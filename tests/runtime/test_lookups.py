"""Static tables are read once per run and kept with it; setup hooks are called once per process."""

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from clew import (
    Connection,
    Context,
    Count,
    InputSet,
    Observed,
    Operator,
    Pipeline,
    files,
    generator,
    lookup,
    sqlite,
)
from clew.errors import BodyDamaged, GraphError, GraphErrors, HookFailed, LookupFailed, UserFunctionFailed
from clew.faultpoint import arm
from clew.pipeline.lookups import Lookup
from clew.run import run, verify
from clew.runtime.progress import Progress
from clew.supervisor.threads import Policy
from tests.app.pipelines import call, write
from tests.spark.outside import rows

RATES = pa.table({"currency": ["EUR", "USD"], "rate": [1.0, 0.5]})
#: A kept content is loaded once per process; each test has rates of its own where that matters.
GIVE_UP = Policy(first_delay=0.01, give_up_after=1)


def amounts(index: int) -> pa.Table:
    return pa.table({"currency": ["EUR", "USD", "EUR"], "amount": [index, 2 * index, 3 * index]})


def priced(table: pa.Table, rates: pa.Table) -> pa.Table:
    return table.join(rates, "currency").select(["currency", "amount", "rate"])


def by_record(record: dict[str, Any], rates: Mapping[str, Any]) -> dict[str, Any]:
    return {**record, "rate": rates[record["currency"]]["rate"]}


def rates_file(tmp_path: Path, eur: float = 1.0) -> Path:
    path = tmp_path / "rates.csv"
    path.write_text(f"currency,rate\nEUR,{eur}\nUSD,0.5\n")
    return path


def declared(tmp_path: Path, rates: Any, events: int = 3, **settings: Any) -> Pipeline:
    pipeline = Pipeline("priced")
    source = pipeline.source("amounts", generator(amounts, events), max_turn_events=1)
    settings = {"lookups": {"rates": rates}, "deterministic": True, "max_turn_events": 1} | settings
    source.map(by_record, name="priced", **settings).sink(files(tmp_path / "out"))
    return pipeline


def place(tmp_path: Path) -> dict[str, Any]:
    return {"log": f"sqlite:///{tmp_path}/log.db", "engine": "inline"}


def found(tmp_path: Path) -> list[tuple[str, int, float]]:
    return sorted((row["currency"], row["amount"], row["rate"]) for row in rows(tmp_path / "out"))


def expected(events: int = 3, eur: float = 1.0) -> list[tuple[str, int, float]]:
    rates = {"EUR": eur, "USD": 0.5}
    made = [row for index in range(events) for row in amounts(index).to_pylist()]
    return sorted((row["currency"], row["amount"], rates[row["currency"]]) for row in made)


def explained(pipeline: Pipeline, tmp_path: Path) -> None:
    verdict = verify(pipeline, **place(tmp_path))
    assert verdict.word == "explained", verdict.findings
    assert verdict.counts["Output Sets"]


def as_arrow(source: Any, settings: dict[str, Any]) -> Any:
    return source.apply(priced, **settings)


def as_pandas(source: Any, settings: dict[str, Any]) -> Any:
    def merged(frame: pd.DataFrame, rates: pd.DataFrame) -> pd.DataFrame:
        return frame.merge(rates, on="currency")

    return source.apply(merged, **settings)


def as_flat_map(source: Any, settings: dict[str, Any]) -> Any:
    return source.flat_map(lambda record, rates: [by_record(record, rates)], **settings)


def as_general(source: Any, settings: dict[str, Any]) -> Any:
    class Priced(Operator):
        def assign(self, event: Any, state: Any) -> Any:
            return [event.number]

        def ready(self, state: Any, opened: Any) -> Any:
            return list(opened)

        def generate(self, input_set: InputSet, context: Context) -> pa.Table:
            assert context.records["rates"]["EUR"]["rate"] == 1.0
            return priced(input_set.table(), context.lookups["rates"])

    return source._declaring.general("priced", Priced(), source, **settings)


def as_also(source: Any, settings: dict[str, Any]) -> Any:
    pipeline, given = source._declaring, {"lookups": settings.pop("lookups")}

    @pipeline.operator(source, **settings)
    def first(table: pa.Table) -> pa.Table:
        return table

    pipeline.also(first, outputs=["second"], **given)(priced)
    return pipeline.port("first.second")


def as_branch(source: Any, settings: dict[str, Any]) -> Any:
    known = source.branch(known=lambda record, rates: record["currency"] in rates, settings=settings)["known"]
    return known.map(by_record, **settings)


def as_enrichment(source: Any, settings: dict[str, Any]) -> Any:
    class Echo(Connection):
        def describe(self) -> str:
            return "echo"

        def read(self, action: str) -> pa.Table:
            return pa.table({"rate": [float(action)]})

    return source.enrich(Echo(), lambda record, rates: str(rates[record["currency"]]["rate"]), **settings)


@pytest.mark.parametrize(
    "how",
    [as_arrow, as_pandas, as_flat_map, as_general, as_also, as_branch, as_enrichment],
    ids=lambda how: how.__name__,
)
def test_functions_of_every_style_get_lookups(how: Any, tmp_path: Path) -> None:
    pipeline = Pipeline("priced")
    source = pipeline.source("amounts", generator(amounts, 3))
    settings = {"lookups": {"rates": lookup(RATES, key="currency")}, "deterministic": True}
    how(source, settings).sink(files(tmp_path / "out"))
    run(pipeline, **place(tmp_path))
    assert found(tmp_path) == expected()
    explained(pipeline, tmp_path)


def test_a_filter_gets_lookups(tmp_path: Path) -> None:
    pipeline = Pipeline("filtered")
    dear = lookup([{"currency": "EUR"}])
    source = pipeline.source("amounts", generator(amounts, 2))

    @pipeline.filter(source, lookups={"dear": dear})
    def kept(record: dict[str, Any], dear: list[dict[str, Any]]) -> bool:
        return {"currency": record["currency"]} in dear

    pipeline.sink(kept, files(tmp_path / "out"))
    run(pipeline, **place(tmp_path))
    assert {row["currency"] for row in rows(tmp_path / "out")} == {"EUR"}


class Rates(Observed):
    def describe(self) -> str:
        return "rates"

    def observe(self) -> Any:
        return iter([RATES.slice(0, 1), RATES.slice(1)])


def database(tmp_path: Path) -> Any:
    with sqlite3.connect(tmp_path / "rates.db") as connection:
        connection.execute("CREATE TABLE rates (currency TEXT PRIMARY KEY, rate REAL)")
        connection.execute("INSERT INTO rates VALUES ('EUR', 1.0), ('USD', 0.5)")
    return sqlite(tmp_path / "rates.db", query="SELECT currency, rate FROM rates", unique="currency")


@pytest.mark.parametrize(
    "content",
    [
        lambda tmp_path: RATES,
        lambda tmp_path: RATES.to_batches()[0],
        lambda tmp_path: RATES.to_pylist(),
        lambda tmp_path: RATES.to_pandas(),
        lambda tmp_path: rates_file(tmp_path),
        lambda tmp_path: str(rates_file(tmp_path)),
        lambda tmp_path: files(rates_file(tmp_path), rows_per_event=1),
        lambda tmp_path: Rates(),
        database,
        lambda tmp_path: lambda: RATES,
    ],
    ids=["table", "batch", "dicts", "pandas", "path", "text", "source", "observed", "database", "function"],
)
def test_a_lookup_is_made_of_many_things(content: Any, tmp_path: Path) -> None:
    run(declared(tmp_path, lookup(content(tmp_path), key="currency")), **place(tmp_path))
    assert found(tmp_path) == expected()


def crashed(pipeline: Pipeline, tmp_path: Path) -> None:
    """Begin a run, and end it when its operator has committed once."""
    (fault,) = arm("after-commit@priced#1:raise")
    with pytest.raises(BaseException, match="after-commit"):
        run(pipeline, **place(tmp_path), policy=GIVE_UP)
    arm()
    assert fault.fired


def test_a_run_that_is_resumed_keeps_its_lookup(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    crashed(declared(tmp_path, lookup(rates_file(tmp_path, 1.0), key="currency")), tmp_path)
    changed = declared(tmp_path, lookup(rates_file(tmp_path, 9.0), key="currency"))
    progress = Progress()
    run(changed, **place(tmp_path), progress=progress)
    assert found(tmp_path) == expected(eur=1.0)
    (warning,) = progress.warnings
    assert warning == (
        "lookup rates of priced has changed since the run began; the run goes on with what it has kept, start with "
        "--fresh to use the new one"
    )
    assert "lookup changed" in caplog.text
    explained(changed, tmp_path)


def test_a_run_is_resumed_although_its_lookup_is_gone(tmp_path: Path) -> None:
    path = rates_file(tmp_path)
    pipeline = declared(tmp_path, lookup(path, key="currency"))
    crashed(pipeline, tmp_path)
    path.unlink()
    progress = Progress()
    run(pipeline, **place(tmp_path), progress=progress)
    assert found(tmp_path) == expected()
    assert "cannot be read any more since the run began" in progress.warnings[0]
    explained(pipeline, tmp_path)


def test_a_lookup_that_two_operators_share_is_read_once(tmp_path: Path) -> None:
    reads: list[int] = []

    def read() -> pa.Table:
        reads.append(1)
        return pa.table({"currency": ["EUR", "USD"], "rate": [float(len(reads)), 0.5]})

    pipeline = Pipeline("shared")
    source = pipeline.source("amounts", generator(amounts, 2))
    rates = lookup(read, key="currency")
    for name in ("one", "two"):
        source.map(by_record, name=name, lookups={"rates": rates}).sink(files(tmp_path / "out" / name))
    run(pipeline, **place(tmp_path))
    assert len(reads) == 1
    assert len(list((tmp_path / "log.db.bodies" / ".lookups").iterdir())) == 1


def test_verify_finds_a_kept_content_that_was_changed(tmp_path: Path) -> None:
    own = lookup(pa.table({"currency": ["EUR", "USD"], "rate": [1.0, 0.25]}), key="currency")
    pipeline = declared(tmp_path, own)
    run(pipeline, **place(tmp_path))
    (kept,) = (tmp_path / "log.db.bodies" / ".lookups").iterdir()
    content = kept.read_bytes()
    kept.write_bytes(content[:-1])
    (finding,) = verify(pipeline, **place(tmp_path)).findings
    assert f"the kept content of lookup rates in {kept.name} is damaged" in str(finding)
    kept.unlink()
    (finding,) = verify(pipeline, **place(tmp_path)).findings
    assert "the kept content of lookup rates cannot be read: No such file" in str(finding)


def test_verify_finds_that_a_lookup_was_not_kept(tmp_path: Path) -> None:
    run(declared(tmp_path, lookup(RATES, key="currency")), **place(tmp_path))
    other = Pipeline("priced")
    source = other.source("amounts", generator(amounts, 3))
    given = {"rates": lookup(RATES, key="currency"), "more": lookup(RATES)}
    source.map(lambda record, rates, more: record, name="priced", lookups=given, deterministic=True).sink(
        files(tmp_path / "out")
    )
    (finding,) = verify(other, **place(tmp_path)).findings
    assert "the log has not kept lookup more" in str(finding)


def test_a_run_finds_a_kept_content_that_was_damaged(tmp_path: Path) -> None:
    rates = pa.table({"currency": ["EUR", "USD"], "rate": [1.0, 0.125]})
    pipeline = declared(tmp_path, lookup(rates, key="currency"))
    (fault,) = arm("after-gather@priced#1:raise")
    with pytest.raises(BaseException, match="after-gather"):
        run(pipeline, **place(tmp_path), policy=GIVE_UP)
    arm()
    assert fault.fired
    (kept,) = (tmp_path / "log.db.bodies" / ".lookups").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    with pytest.raises(BodyDamaged, match="does not match its checksum"):
        run(pipeline, **place(tmp_path))


def test_without_a_log_lookups_work_too(tmp_path: Path) -> None:
    run(declared(tmp_path, lookup(RATES, key="currency")), engine="inline", recovery="none")
    assert found(tmp_path) == expected()


def wrong(declare: Any) -> str:
    pipeline = Pipeline("wrong")
    source = pipeline.source("amounts", generator(amounts, 1))
    declare(pipeline, source)
    with pytest.raises(GraphErrors) as refused:
        pipeline.graph()
    return "\n".join(error.message for error in refused.value.errors)


def test_what_is_wrong_with_lookups_is_told_when_they_are_declared() -> None:
    rates = lookup(RATES)
    given: Any = [rates]
    told = wrong(lambda p, s: s.map(by_record, name="m", lookups=given))
    assert "lookups of m are [" in told
    assert "give them by name, as in lookups={'rates': clew.lookup(...)}" in told
    told = wrong(lambda p, s: s.map(by_record, name="m", lookups={"rates": RATES}))
    assert "lookup rates of m is a Table; make it with clew.lookup(...)" in told
    told = wrong(lambda p, s: s.map(by_record, name="m", lookups={"rates": rates, 3: rates, "a b": rates}))
    assert "3 cannot name a lookup of m; use a name that a parameter can have" in told
    assert "'a b' cannot name a lookup" in told
    told = wrong(lambda p, s: s.map(by_record, name="m", lookups={"rate": rates}))
    assert "by_record has no parameter rate to take the lookup of that name by; add it, or" in told
    assert "m takes 2 inputs, but 1 is given" in told
    told = wrong(lambda p, s: s.window(Count(2)).aggregate(n="count", settings={"lookups": {"rates": rates}}))
    assert "amounts_aggregate calls no function of yours, so it takes neither lookups nor setup; leave them out" in told
    told = wrong(lambda p, s: s.number("n", setup=dict))
    assert "amounts_number calls no function of yours" in told
    told = wrong(lambda p, s: p.sql("q", "SELECT 1", rates=s, lookups={"rates": rates}))
    assert "q has an input and a lookup of the name rates; give one of them another" in told
    told = wrong(lambda p, s: s.map(lambda record: record, name="m", setup=3))
    assert "setup of m is 3; give it a function without arguments" in told


def test_annotations_of_lookups_are_checked() -> None:
    def mixed(table: pa.Table, rates: pd.DataFrame) -> pa.Table:
        return table

    told = wrong(lambda p, s: s.apply(mixed, lookups={"rates": lookup(RATES)}))
    assert "mixed takes pyarrow.Table, and so it gets lookup rates; annotate it so" in told


def test_functions_of_one_operator_name_their_lookups_apart() -> None:
    def declare(pipeline: Pipeline, source: Any) -> None:
        pipeline.operator(source, lookups={"rates": lookup(RATES)})(priced)
        also = pipeline.also("priced.out", outputs=["more"], lookups={"rates": lookup(RATES)})

        @also
        def more(table: pa.Table, rates: pa.Table) -> pa.Table:
            return table

    assert "priced has two lookups of the name rates; give one of them another" in wrong(declare)


@pytest.mark.parametrize(
    "content",
    [3, None, {"a": 1}, [1, 2], files("x", follow=True)],
    ids=["number", "none", "dict", "numbers", "growing"],
)
def test_what_is_no_table_is_no_lookup(content: Any) -> None:
    with pytest.raises(GraphError, match=r"a lookup cannot be made of .*; give it a path of files, a pyarrow.Table"):
        lookup(content)


def test_a_source_that_needs_spark_is_no_lookup() -> None:
    from clew import spark_read

    with pytest.raises(GraphError, match=r"a lookup cannot be made of .*; give it a path"):
        lookup(spark_read(lambda spark: spark.range(3)))


def test_a_key_is_a_column() -> None:
    with pytest.raises(GraphError, match=r"a lookup cannot have key=\['a'\]; name one of its columns"):
        lookup(RATES, key=["a"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        (lambda p: lookup(p / "none.csv"), "lookup rates of operator priced: .*none.csv.*; mend it, and run again"),
        (
            lambda p: lookup(RATES, key="code"),
            "it has no column code, which was named as its key; it has currency, rate",
        ),
        (
            lambda p: lookup([{"k": "EUR"}, {"k": "EUR"}], key="k"),
            "its key k has 'EUR' more than once; each row needs a key of its own",
        ),
        (lambda p: lookup([{"k": [1]}], key="k"), "its key k is a list<.*>; name a column of plain values"),
        (lambda p: lookup(lambda: 3), "the function returned a int; return a table, a DataFrame or a list of dicts"),
        (
            lambda p: lookup([], key="code"),
            "it is empty, so that it has no column code, which was named as its key; give it its columns; mend it",
        ),
        (
            lambda p: lookup(_fails),
            r"what _fails returns cannot be read: OSError: no network\n.*test_lookups.py\", line \d+, in _fails\n"
            r"    raise OSError\(\"no network\"\)\nmend it, and run again",
        ),
    ],
    ids=["missing", "no key", "twice", "nested", "no table", "empty", "raises"],
)
def test_a_lookup_that_cannot_be_read_stops_a_run_before_it_begins(rates: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(LookupFailed, match=message):
        run(declared(tmp_path, rates(tmp_path)), **place(tmp_path))


def _fails() -> pa.Table:
    raise OSError("no network")


# Setup hooks.


def test_a_setup_hook_is_called_once(tmp_path: Path) -> None:
    calls: list[int] = []

    def opened() -> dict[str, float]:
        calls.append(1)
        return {"EUR": 1.0, "USD": 0.5}

    pipeline = Pipeline("set_up")
    source = pipeline.source("amounts", generator(amounts, 3), max_turn_events=1)

    def rated(record: dict[str, Any], resources: Any) -> dict[str, Any]:
        return {**record, "rate": resources[record["currency"]]}

    source.map(rated, setup=opened, deterministic=True, max_turn_events=1).sink(files(tmp_path / "out"))
    run(pipeline, **place(tmp_path))
    assert found(tmp_path) == expected()
    explained(pipeline, tmp_path)
    assert len(calls) == 1


def test_a_function_need_not_take_what_its_hook_made(tmp_path: Path) -> None:
    calls: list[int] = []
    pipeline = Pipeline("set_up")
    source = pipeline.source("amounts", generator(amounts, 1))
    source.map(lambda record: record, setup=lambda: calls.append(1), name="same").sink(files(tmp_path / "out"))
    run(pipeline, **place(tmp_path))
    assert calls == [1]


def test_a_general_operator_finds_what_its_hook_made(tmp_path: Path) -> None:
    class Rated(Operator):
        def assign(self, event: Any, state: Any) -> Any:
            return [event.number]

        def ready(self, state: Any, opened: Any) -> Any:
            return list(opened)

        def generate(self, input_set: InputSet, context: Context) -> pa.Table:
            table = input_set.table()
            return table.append_column("rate", pc.if_else(pc.equal(table["currency"], "EUR"), 1.0, context.resources))

    pipeline = Pipeline("set_up")
    source = pipeline.source("amounts", generator(amounts, 3))
    pipeline.general("rated", Rated(), source, setup=lambda: 0.5, deterministic=True).sink(files(tmp_path / "out"))
    run(pipeline, **place(tmp_path))
    assert found(tmp_path) == expected()
    explained(pipeline, tmp_path)


class Mended:
    yes = False


def test_a_hook_that_fails_stops_the_run_and_quarantines_nothing(tmp_path: Path) -> None:
    Mended.yes = False

    def connect() -> dict[str, float]:
        if not Mended.yes:
            raise ConnectionError("no server")
        return {"EUR": 1.0, "USD": 0.5}

    pipeline = Pipeline("set_up")
    source = pipeline.source("amounts", generator(amounts, 3))

    def rated(record: dict[str, Any], resources: Any) -> dict[str, Any]:
        return {**record, "rate": resources[record["currency"]]}

    source.map(rated, setup=connect, on_error="quarantine").sink(files(tmp_path / "out"))
    with pytest.raises(HookFailed) as failed:
        run(pipeline, **place(tmp_path))
    message = str(failed.value)
    assert message.startswith("setup of operator rated failed: ConnectionError: no server\n")
    assert "in connect" in message
    assert 'raise ConnectionError("no server")' in message
    assert "clew/runtime" not in message
    Mended.yes = True
    assert run(pipeline, **place(tmp_path)).quarantined == 0
    assert found(tmp_path) == expected()


def test_a_function_that_misses_in_a_lookup_fails_as_it_does_elsewhere(tmp_path: Path) -> None:
    pipeline = declared(tmp_path, lookup(RATES.slice(0, 1), key="currency"))
    with pytest.raises(
        UserFunctionFailed, match=r"operator priced failed on amounts.out#1, record 1 .*KeyError: 'USD'"
    ):
        run(pipeline, **place(tmp_path))


def test_lookups_have_words() -> None:
    assert lookup(RATES).described == "a Table"
    assert lookup(_fails).described == "what _fails returns"
    assert isinstance(lookup("x.csv"), Lookup)


PIPELINE = """
import pyarrow as pa
from clew import Pipeline, files, generator, lookup

pipeline = Pipeline("priced")
amounts = pipeline.source("amounts", generator(lambda i: pa.table({"currency": [["EUR", "USD"][i % 2]]}), 4))

@pipeline.map(amounts, lookups={"rates": lookup("rates.csv", key="currency")}, on_error="quarantine")
def priced(record, rates):
    return {**record, "rate": rates[record["currency"]]["rate"]}

pipeline.sink(priced, files("out"))
"""


def test_the_command_line_warns_of_a_lookup_that_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path, "priced.py", PIPELINE)
    write(tmp_path, "rates.csv", "currency,rate\nEUR,1.0\n")
    # Two records are set aside, so that the run is not over.
    assert "warning" not in call("run", file, "--engine", "inline").stderr
    write(tmp_path, "rates.csv", "currency,rate\nEUR,1.0\nUSD,0.5\n")
    call("quarantine", "drop", file, "--all")
    again = call("run", file, "--engine", "inline", "--json")
    assert "warning: lookup rates of priced has changed since the run began" in again.stderr
    assert "has changed since" in json.loads(again.stdout)["warnings"][0]
    assert len(rows(tmp_path / "out")) == 2
