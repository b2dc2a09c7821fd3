"""What a function's annotations say of how it runs."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

#: Whose DataFrame or Table an annotation means; other libraries use the same names.
_HOMES = {
    ("DataFrame", "pyspark"): "DataFrame", ("DataFrame", "sql"): "DataFrame", ("DataFrame", ""): "DataFrame",
    ("DataFrame", "pandas"): "pandas", ("DataFrame", "pd"): "pandas",
    ("Table", "pyarrow"): "Table", ("Table", "pa"): "Table", ("Table", ""): "Table",
}  # fmt: skip
TOLD = {"DataFrame": "pyspark.sql.DataFrame", "pandas": "pandas.DataFrame", "Table": "pyarrow.Table"}


def hints_of(function: Any) -> dict[str, Any]:
    """Return a function's annotations; of one that cannot be evaluated, the text."""
    try:
        return get_type_hints(function)
    except Exception:
        # Evaluating a user's annotation may fail in any way.
        written = getattr(function, "__annotations__", {})
        names = getattr(function, "__globals__", {})
        return {name: _evaluated(hint, names) for name, hint in written.items()}


def _evaluated(hint: Any, names: Mapping[str, Any]) -> Any:
    try:
        return get_type_hints(SimpleNamespace(__annotations__={"one": hint}), dict(names))["one"]
    except Exception:
        return hint


def kind_of(hint: Any) -> str:
    """Return the kind of an annotation that chooses a way to run, without importing pyspark to look at it."""
    if isinstance(hint, str):
        path, _, name = hint.strip("'\" ").rpartition(".")
    else:
        path, name = getattr(hint, "__module__", "?"), getattr(hint, "__name__", "")
    if path.startswith("pyspark.pandas"):
        return ""
    return _HOMES.get((name, path.partition(".")[0]), "")


def returned_kind(hint: Any) -> str:
    """Return the kind of what a function returns, also in a list or a dict; "" where its annotation does not tell."""
    inner = [one for one in get_args(hint) if one not in (str, type(None), ...)]
    return kind_of(inner[0]) if inner else kind_of(hint)
