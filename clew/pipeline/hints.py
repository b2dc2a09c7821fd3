"""What annotations tell of records: in which form a function takes one, and which columns it gives."""

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

import pyarrow as pa
import pyarrow.types as pt

from clew.errors import ClewError, GraphError

Verb = Literal["map", "flat_map", "filter"]

#: What a field's annotation means in Arrow. A decimal has a scale of its own, so it must be declared with schema=.
_KINDS: dict[Any, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    datetime: pa.timestamp("us", "UTC"),
    date: pa.date32(),
    time: pa.time64("us"),
}

#: Values of these hold nothing else.
_FLAT = frozenset({*_KINDS, Decimal})


def record_type(hint: Any) -> type | None:
    """Return the dataclass that records are given as, or None for dicts; raises GraphError for anything else."""
    if isinstance(hint, str):
        raise GraphError(
            f"the annotation {hint!r} names nothing that is defined there; name dict, a TypedDict or a dataclass, and "
            "define it at the top of a module"
        )
    plain = typing.get_origin(hint) or hint
    if hint is None or hint is Any or (isinstance(plain, type) and issubclass(plain, Mapping)):
        return None
    if typing.is_typeddict(hint):
        return None
    if _is_dataclass(hint):
        return typing.cast(type, hint)
    raise GraphError(f"{named(hint)} is no record; annotate it as dict, as a TypedDict or as a dataclass")


def schema_of(hint: Any, verb: Verb) -> pa.Schema | None:
    """Return the schema that a function's return annotation tells, where it tells one."""
    if verb == "flat_map":
        hint = _element(_other(hint))
    kind = _struct(hint, ())
    return None if kind is None else pa.schema(list(kind))


def check_returns(hint: Any, verb: Verb, name: str) -> None:
    """Raise GraphError when a function's return annotation cannot be what the verb needs."""
    if hint is None or hint is Any:
        return
    if verb == "filter" and hint is not bool:
        raise GraphError(f"{name} returns {named(hint)}; what filters returns bool")
    if verb == "map":
        record_type(hint)
    if verb == "flat_map":
        plain = typing.get_origin(_other(hint)) or _other(hint)
        if not (isinstance(plain, type) and issubclass(plain, Iterable)):
            raise GraphError(f"{name} returns {named(hint)}; what flat_map calls returns records, as in list[dict]")
        record_type(_element(_other(hint)))


def check_asks(hint: Any, name: str) -> None:
    """Raise GraphError when a function's return annotation can be no read action, nor None for none."""
    for one in typing.get_args(hint) if _is_union(hint) else (hint,):
        plain = typing.get_origin(one) or one
        if plain is not Any and isinstance(plain, type) and not issubclass(plain, str | types.NoneType):
            raise GraphError(f"{name} returns {named(hint)}; what asks returns str, or None for a record that does not")


def named(hint: Any) -> str:
    """Return an annotation as it is written."""
    if isinstance(hint, str):
        return repr(hint)
    # Of `list[int]` and `Optional[int]` the name alone would be half of it.
    return str(hint) if typing.get_args(hint) else getattr(hint, "__name__", str(hint))


# Records as dataclasses.


@dataclasses.dataclass(frozen=True)
class OfDataclass:
    """A function of a record that is annotated with a dataclass: it is called with a dict, and gets the dataclass."""

    function: Callable[..., Any]
    record: type

    def __call__(self, row: Mapping[str, Any], *others: Any, **given: Any) -> Any:
        return self.function(built(self.record, row), *others, **given)

    @property
    def __signature__(self) -> inspect.Signature:
        # It takes the lookups that its function takes.
        return inspect.signature(self.function)


def built(record: type, row: Mapping[str, Any]) -> Any:
    """Return a record as a dataclass, with dataclasses in those of its fields that are annotated so."""
    nested = _nested(record)
    if not nested:
        return record(**row)
    return record(**{name: _value(nested[name], one) if name in nested else one for name, one in row.items()})


def _value(record: type, value: Any) -> Any:
    if isinstance(value, list):
        return [_value(record, one) for one in value]
    return built(record, value) if isinstance(value, Mapping) else value


def apart(value: Any) -> Any:
    """Return a value with dicts for the dataclasses in it."""
    if value is None or type(value) in _FLAT:
        return value
    if _is_dataclass(type(value)):
        return {field.name: apart(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: apart(one) for name, one in value.items()}
    # The items of a list are of one kind, so the first tells whether there may be anything to take apart.
    if isinstance(value, list | tuple) and value and type(value[0]) not in _FLAT:
        items = (apart(one) for one in value)
        return tuple(items) if isinstance(value, tuple) else list(items)
    return value


def check_fit(record: type, schema: pa.Schema) -> None:
    """Raise ClewError where records of these columns cannot be built as a dataclass."""
    wrong = misfit(record, schema)
    if wrong is not None:
        raise ClewError(wrong)


@lru_cache(maxsize=256)
def misfit(record: type, schema: pa.Schema) -> str | None:
    """Say why records of these columns cannot be built as a dataclass, where they cannot."""
    return next(_misfits(record, schema, ""), None)


def _misfits(record: type, fields: Iterable[pa.Field], path: str) -> Iterator[str]:
    found = {field.name: field.type for field in fields}
    missing, extra = _apart_from(record, found)
    if missing or extra:
        part, where = ("part", f" in column {path}") if path else ("column", "")
        facts = [f"there is no {part} {name}" for name in missing]
        facts += [f"{record.__name__} has no field {name}" for name in extra]
        yield (
            f"a record cannot be made a {record.__name__}{where}: {' and '.join(facts)}; expected a {part} for each "
            f"field and a field for each of {', '.join(found)}: mend the dataclass, give fields that may be missing a "
            "default, or take a dict"
        )
    for name, inner in _nested(record).items():
        kind, place = found.get(name, pa.null()), f"{path}.{name}" if path else name
        while pt.is_list(kind):
            kind = kind.value_type
        if pt.is_struct(kind):
            yield from _misfits(inner, kind, place)
        elif not pt.is_null(kind):
            yield (
                f"column {place} is {kind}, expected a struct, for {record.__name__}.{name} is a {inner.__name__}; "
                "annotate the field with what the column holds"
            )


def _apart_from(record: type, names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the arguments that a dataclass must have besides these names, and the names that it has none for."""
    try:
        parameters = inspect.signature(record).parameters
    except (TypeError, ValueError):
        # Its own way to be made does not tell.
        return [], []
    kinds = {one.kind for one in parameters.values()}
    named_ones = {name: one for name, one in parameters.items() if one.kind not in _ANY_NUMBER}
    given = set(names)
    missing = [name for name, one in named_ones.items() if one.default is one.empty and name not in given]
    extra = [] if inspect.Parameter.VAR_KEYWORD in kinds else [name for name in names if name not in named_ones]
    return missing, extra


_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@lru_cache(maxsize=256)
def _nested(record: type) -> Mapping[str, type]:
    """Return the dataclasses of fields that hold one, or a list of them."""
    try:
        fields = _fields(record)
    except GraphError:
        # Annotations that cannot be read tell nothing, and need not for a record that is only taken.
        return {}
    inner = {name: _dataclass_in(hint) for name, hint in fields.items()}
    return {name: one for name, one in inner.items() if one is not None}


def _dataclass_in(hint: Any) -> type | None:
    hint = _other(hint)
    if typing.get_origin(hint) is list:
        return _dataclass_in(_element(hint))
    return hint if _is_dataclass(hint) else None


# Annotations as types of Arrow.


def _fields(hint: Any) -> dict[str, Any]:
    """Return the annotations of the fields of a dataclass or a TypedDict; raises GraphError."""
    try:
        hints = typing.get_type_hints(hint)
    except Exception as error:
        # Evaluating a user's annotation may fail in any way.
        raise GraphError(
            f"the annotations of {named(hint)} cannot be read ({error}); use what is defined at the top of its module"
        ) from None
    return {one.name: hints[one.name] for one in dataclasses.fields(hint)} if _is_dataclass(hint) else hints


def _struct(hint: Any, inside: tuple[Any, ...]) -> pa.DataType | None:
    # What holds records of its own kind has no type.
    if not (_is_dataclass(hint) or typing.is_typeddict(hint)) or hint in inside:
        return None
    kinds = {name: _kind(one, (*inside, hint)) for name, one in _fields(hint).items()}
    return None if None in kinds.values() else pa.struct(list(kinds.items()))


def _kind(hint: Any, inside: tuple[Any, ...]) -> pa.DataType | None:
    hint = _other(hint)
    if typing.get_origin(hint) is list:
        inner = _kind(_element(hint), inside)
        return None if inner is None else pa.list_(inner)
    return _KINDS[hint] if hint in _KINDS else _struct(hint, inside)


def _is_dataclass(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _other(hint: Any) -> Any:
    """Return what an annotation allows besides None, where that is one thing."""
    others = [one for one in typing.get_args(hint) if one is not types.NoneType] if _is_union(hint) else []
    return others[0] if len(others) == 1 else hint


def _element(hint: Any) -> Any:
    found = typing.get_args(hint)
    return found[0] if found else None
