"""Versions: what of an operator has changed, told part by part and the same in every process."""

import copy
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from clew.pipeline.code import digest_of
from clew.pipeline.load import load
from clew.pipeline.versions import Version

BASE = {
    "pipeline.py": """
        import re
        import pyarrow as pa
        from clew import Count, Each, Operator, Pipeline, generator, lookup, sqlite
        import helpers
        from helpers import Scale, triple

        RATE = {"eur": 1.0, "usd": 1.1}
        KNOWN = {"a", "b", "c", "d", "e", "f"}
        WORD = re.compile("[a-z]+")
        PRICES = pa.table({"item": ["a", "b"], "price": [1, 2]})

        def make(index):
            return pa.table({"n": [index]})

        def outer(factor):
            def inner(value):
                return value * factor
            return inner

        times = outer(3)

        pipeline = Pipeline("p")
        numbers = pipeline.source("numbers", generator(make, 10))

        @pipeline.operator(numbers, name="work", window=Count(5))
        def work(table: pa.Table) -> pa.Table:
            cheap = PRICES["price"][0].as_py()
            kept = [cheap * times(triple(v)) for v in table["n"].to_pylist() if v not in (3, 4)]
            return pa.table({"n": [helpers.add(Scale().of(v)) * RATE["usd"] * len(KNOWN) for v in kept]})

        def opened():
            return 41

        @pipeline.map(numbers, setup=opened, lookups={"rates": lookup([{"k": 1}], key="k")})
        def priced(record, rates):
            return record

        class Gather(Operator):
            size = 3

            def __init__(self, unit):
                self.unit = unit

            def initial(self):
                return {"k": 0}

            def assign(self, event, state):
                state["k"] += 1
                return [self._group(state["k"])]

            def _group(self, k):
                return k // self.size

            def ready(self, state, opened):
                return [key for key in opened if key < state["k"] // 3]

            def generate(self, input_set, context):
                return pa.table({"n": [self.unit]})

        gathered = pipeline.general("gather", Gather(7), numbers)
        pipeline.sink(gathered, sqlite("sink.db", table="t"), name="keep")
    """,
    "helpers.py": """
        OFFSET = 10

        def add(value):
            return value + OFFSET

        def triple(value):
            return thrice(value)

        def thrice(value):
            return 3 * value

        class Scale:
            by = 2

            def of(self, value):
                return value * self.by
    """,
}  # fmt: skip


def versions(directory: Path, *changes: tuple[str, str]) -> dict[str, Version]:
    """Load the pipeline with some text replaced, and return the versions of its operators."""
    directory.mkdir(exist_ok=True)
    files = {name: textwrap.dedent(text) for name, text in BASE.items()}
    for old, new in changes:
        assert any(old in text for text in files.values()), old
        files = {name: text.replace(old, new) for name, text in files.items()}
    for name, text in files.items():
        (directory / name).write_text(text)
    before, path = set(sys.modules), list(sys.path)
    try:
        graph = load(str(directory / "pipeline.py")).graph()
        return {name: dict(spec.version) for name, spec in graph.operators.items()}
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            del sys.modules[name]


def changed(directory: Path, *changes: tuple[str, str]) -> set[tuple[str, str]]:
    was, now = versions(directory / "was"), versions(directory / "now", *changes)
    return {(name, part) for name in was for part in was[name] if was[name][part] != now[name][part]}


#: What changes nothing: comments, lines, docstrings, annotations, names of files.
SAME = {
    "a comment": ("def make(index):", "# A comment.\n\n\ndef make(index):"),
    "a docstring": (
        "def work(table: pa.Table) -> pa.Table:",
        'def work(table: pa.Table) -> pa.Table:\n    """Works."""',
    ),
    "a docstring of what is used": ("def thrice(value):", 'def thrice(value):\n    """Three times."""'),
    "a docstring of a class": ("class Scale:", 'class Scale:\n    """Scales."""'),
    "an annotation of what is used": ("def add(value):", "def add(value: int) -> int:"),
    "what nobody uses": ("OFFSET = 10", "OFFSET = 10\nOTHER = 11"),
    "the content of a lookup, which a run keeps": ('{"k": 1}', '{"k": 2}'),
}

CHANGES = {
    "the function": ("* len(KNOWN)", "+ len(KNOWN)", {("work", "code")}),
    "a constant in it": ("in (3, 4)", "in (3, 5)", {("work", "code")}),
    "a constant of its module": ('"usd": 1.1', '"usd": 1.2', {("work", "code")}),
    "a set": ('"e", "f"}', '"e", "g"}', {("work", "code")}),
    "a table": ('"price": [1, 2]', '"price": [1, 3]', {("work", "code")}),
    "a closure": ("outer(3)", "outer(4)", {("work", "code")}),
    "a function that is used by one that is used": ("3 * value", "4 * value", {("work", "code")}),
    "a function used through its module": ("value + OFFSET", "value - OFFSET", {("work", "code")}),
    "a constant of another module": ("OFFSET = 10", "OFFSET = 12", {("work", "code")}),
    "a class": ("by = 2", "by = 5", {("work", "code")}),
    "the source's function": ('pa.table({"n": [index]})', 'pa.table({"n": [index + 1]})', {("numbers", "code")}),
    "a setup hook": ("return 41", "return 42", {("priced", "code")}),
    "a lookup's key": (', key="k"', "", {("priced", "code")}),
    "the window": ("Count(5)", "Count(6)", {("work", "window")}),
    "an input": ('Gather(7), numbers', 'Gather(7), "work"', {("gather", "inputs")}),
    "the source's place": ("generator(make, 10)", "generator(make, 11)", {("numbers", "place")}),
    "the sink's table": ('table="t"', 'table="u"', {("keep", "place")}),
    "the sink's key": ('table="t"', 'table="t", key="n"', {("keep", "place")}),
    "what a general operator makes": ('[self.unit]', '[self.unit + 1]', {("gather", "code")}),
    "a setting of a general operator": ("Gather(7)", "Gather(8)", {("gather", "code")}),
    "how it assigns": ("k // self.size", "k // self.size + 1", {("gather", "code"), ("gather", "window")}),
    "a value it assigns by": ("size = 3", "size = 4", {("gather", "code"), ("gather", "window")}),
}  # fmt: skip


@pytest.mark.parametrize("case", SAME)
def test_what_does_not_change_what_an_operator_does_does_not_change_its_version(tmp_path: Path, case: str) -> None:
    assert changed(tmp_path, SAME[case]) == set()


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_is_told_by_the_operator_and_the_part(tmp_path: Path, case: str) -> None:
    old, new, parts = CHANGES[case]
    assert changed(tmp_path, (old, new)) == parts


def test_a_version_is_the_same_in_every_process(tmp_path: Path) -> None:
    here = versions(tmp_path)
    script = (
        "import json, sys; from clew.pipeline.load import load; "
        "graph = load(sys.argv[1]).graph(); "
        "print(json.dumps({name: dict(spec.version) for name, spec in graph.operators.items()}))"
    )
    for seed in ("0", "1", "4242"):
        out: Any = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "pipeline.py")],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert json.loads(out) == here


def test_a_version_names_no_password(tmp_path: Path) -> None:
    secret = ('sqlite("sink.db", table="t")', '__import__("clew").postgres("postgresql://me:hush@host/db", table="t")')
    told = versions(tmp_path, secret)["keep"]
    assert "host/db" in told["place"]
    assert "hush" not in str(told)


class Kept:
    """Something that code refers to."""

    size = 3

    def grown(self) -> int:
        return self.size + 1


def test_what_python_notes_on_a_class_does_not_count() -> None:
    before = digest_of(Kept, Kept())
    copy.copy(Kept())
    assert "__slotnames__" in vars(Kept), "Python notes something when an object is copied"
    assert digest_of(Kept, Kept()) == before


def test_what_refers_to_itself_is_read_to_its_end() -> None:
    around: list[object] = [1]
    around.append(around)
    one, other = Kept(), Kept()
    one.__dict__["peer"], other.__dict__["peer"] = other, one

    def again(depth: int) -> object:
        return again(depth - 1) if depth else (around, one)

    assert digest_of(again) == digest_of(again)
