"""What the words of an aggregation compute: what they mean in Spark, by what Arrow computes of groups."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from clew.errors import ClewError
from clew.pipeline.equality import equated, is_comparable


def _as_it_is(answer: pa.ChunkedArray) -> pa.ChunkedArray:
    return answer


class Plan(NamedTuple):
    """What Arrow is asked for, each as a column and a word of Arrow's, and how a column is made of its answers."""

    asked: Sequence[tuple[pa.ChunkedArray | None, str]]
    finish: Callable[..., pa.ChunkedArray] = _as_it_is


@dataclass(frozen=True)
class Asked:
    """A column whose values are to be aggregated, and by which word."""

    operator: str
    column: str
    #: Whose column it is.
    of: str
    how: str
    values: pa.ChunkedArray
    #: The places of the records.
    places: pa.Array
    #: Whether there are groups; else all records are one.
    keyed: bool

    @property
    def kind(self) -> pa.DataType:
        return self.values.type

    def plan(self) -> Plan:
        """Return how it is computed; raises ClewError where the column is of a type that has no such thing."""
        return _PLANS[self.how](self)

    def wrong(self, cure: str) -> ClewError:
        return ClewError(
            f"operator {self.operator} is to compute {self.how} of column {self.column} of {self.of}, which is "
            f"{self.kind}; {cure}"
        )

    def too_large(self, kind: pa.DataType, cure: str) -> ClewError:
        return ClewError(
            f"operator {self.operator} is to compute {self.how} of column {self.column} of {self.of}, and of one group "
            f"it is larger than {kind} holds; cast the column before this operator, {cure}"
        )


def grouped(keys: Sequence[pa.ChunkedArray], plans: Sequence[Plan], places: pa.Array) -> list[pa.ChunkedArray]:
    """Return the keys of groups, and then a column for each plan.

    Groups come in the order of their first records: Arrow's own order depends on how records are cut into chunks.
    """
    asked = [*(one for plan in plans for one in plan.asked), (places, "min")]
    # Columns are known by their numbers here, so that they clash with none, whatever people call theirs.
    given = {str(number): column for number, column in enumerate([*keys, *(column for column, _ in asked)])}
    first = len(keys)
    wanted = [
        ([] if column is None else str(first + number), how, _OPTIONS.get(how))
        for number, (column, how) in enumerate(asked)
    ]
    table = pa.table({name: column for name, column in given.items() if column is not None})
    made = table.group_by([str(number) for number in range(first)], use_threads=False).aggregate(wanted)
    made = made.rename_columns([str(number) for number in range(made.num_columns)]).sort_by(str(made.num_columns - 1))
    columns = made.columns[:first]
    answers = iter(made.columns[first:])
    return [*columns, *(plan.finish(*(next(answers) for _ in plan.asked)) for plan in plans)]


#: Spark's are those of a sample, Arrow's those of the population.
_OPTIONS: dict[str, Any] = {"stddev": pc.VarianceOptions(ddof=1), "variance": pc.VarianceOptions(ddof=1)}


# Sums and means: Arrow's wrap around where they become too large, so they get more digits where that can be.


def _sum(asked: Asked) -> Plan:
    kind = asked.kind
    if pt.is_boolean(kind):
        raise asked.wrong(
            "a sum needs numbers: cast it to pa.int64() before this operator, or filter the records for which it "
            'holds and take "count"'
        )
    if pt.is_integer(kind) or pt.is_duration(kind):
        return _whole_sum(asked)
    if pt.is_decimal(kind):
        return _decimal_sum(asked)
    return Plan([(_numbers(asked), "sum")])


def _whole_sum(asked: Asked) -> Plan:
    target = asked.kind if pt.is_duration(asked.kind) else pa.int64()
    numbers = asked.values.cast(pa.int64()) if pt.is_duration(asked.kind) else asked.values
    if _bits(numbers) + len(numbers).bit_length() <= 63:
        return Plan([(numbers.cast(pa.int64()), "sum")], lambda made: made.cast(target))

    def checked(made: pa.ChunkedArray) -> pa.ChunkedArray:
        try:
            return made.cast(pa.int64()).cast(target)
        except pa.ArrowInvalid:
            raise asked.too_large(target, "to pa.decimal128(38, 0) or pa.float64()") from None

    return Plan([(numbers.cast(pa.decimal128(38, 0)), "sum")], checked)


def _decimal_sum(asked: Asked) -> Plan:
    target = pa.decimal128(38, asked.kind.scale)
    return Plan([(_wide(asked, target.scale), "sum")], _narrowed(asked, target))


def _mean(asked: Asked) -> Plan:
    kind = asked.kind
    if not pt.is_decimal(kind):
        # Arrow computes with floats here, as Spark does; of booleans it is the share of those that hold.
        return Plan([(asked.values if pt.is_boolean(kind) else _numbers(asked), "mean")])
    # Spark gives a mean of decimals four digits more than they have.
    target = pa.decimal128(min(kind.precision + 4, 38), min(kind.scale + 4, 38))
    return Plan([(_wide(asked, target.scale), "mean")], _narrowed(asked, target))


def _wide(asked: Asked, scale: int) -> pa.ChunkedArray:
    """Return decimals with so many digits after the point, and as many before it as their sum may need."""
    more = scale - asked.kind.scale + len(str(len(asked.values)))
    fits = asked.kind.precision + more <= 38 or _digits(asked.values) + more <= 38
    return asked.values.cast(pa.decimal128(38, scale) if fits else pa.decimal256(76, scale))


def _narrowed(asked: Asked, kind: pa.DataType) -> Callable[[pa.ChunkedArray], pa.ChunkedArray]:
    def narrowed(made: pa.ChunkedArray) -> pa.ChunkedArray:
        try:
            return made.cast(kind)
        except pa.ArrowInvalid:
            cure = "to a decimal with fewer digits after the point or to pa.float64()"
            raise asked.too_large(kind, cure) from None

    return narrowed


def _bits(values: pa.ChunkedArray) -> int:
    """Return how many bits the largest of some whole numbers needs, or more where their type says enough."""
    if values.type.bit_width <= 32:
        return int(values.type.bit_width)
    bounds = pc.min_max(values).as_py().values()
    return max((abs(bound).bit_length() for bound in bounds if bound is not None), default=0)


def _digits(values: pa.ChunkedArray) -> int:
    bounds = pc.min_max(values).as_py().values()
    return max((len(bound.as_tuple().digits) for bound in bounds if bound is not None), default=0)


def _spread(asked: Asked) -> Plan:
    numbers = _numbers(asked)
    return Plan([(numbers.cast(pa.float64()) if pt.is_null(asked.kind) else numbers, asked.how)])


def _numbers(asked: Asked) -> pa.ChunkedArray:
    kind = asked.kind
    if not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind) or pt.is_null(kind)):
        raise asked.wrong(
            "it needs numbers: cast it to pa.int64(), pa.float64() or a decimal before this operator, or name another "
            "column"
        )
    return asked.values


# Words that compare.


def _min(asked: Asked) -> Plan:
    numbers = _compared(asked)
    if pt.is_duration(asked.kind):
        # Arrow does not compare these in groups.
        return Plan([(numbers.cast(pa.int64()), asked.how)], lambda made: made.cast(asked.kind))
    return Plan([(numbers, asked.how)])


def _max(asked: Asked) -> Plan:
    if not pt.is_floating(asked.kind):
        return _min(asked)
    is_nan = pc.is_nan(asked.values)
    if not pc.any(is_nan).as_py():
        return _min(asked)
    # In Spark NaN is larger than any number; Arrow passes over it.
    nan = pa.scalar(float("nan"), asked.kind)
    return Plan([(asked.values, "max"), (is_nan, "max")], lambda made, found: pc.if_else(found, nan, made))


def _count_distinct(asked: Asked) -> Plan:
    # Of nothing but nulls Arrow counts one, if they have no type.
    return Plan([(equated(_compared(asked)), "count" if pt.is_null(asked.kind) else "count_distinct")])


def _compared(asked: Asked) -> pa.ChunkedArray:
    if not is_comparable(asked.kind):
        raise asked.wrong(
            "values of this type are not compared: put the part of it that counts into a column of its own before this "
            "operator"
        )
    return asked.values


def _holds(asked: Asked) -> Plan:
    if not (pt.is_boolean(asked.kind) or pt.is_null(asked.kind)):
        raise asked.wrong("it needs booleans: put a comparison into a column of its own before this operator")
    return Plan([(asked.values.cast(pa.bool_()), asked.how)])


# Words that pick records, which may have null there: Arrow would pass over them.


def _first(asked: Asked) -> Plan:
    return Plan([(asked.places, "min")], asked.values.take)


def _last(asked: Asked) -> Plan:
    return Plan([(asked.places, "max")], asked.values.take)


def _list(asked: Asked) -> Plan:
    values = asked.values.combine_chunks()

    def of_groups(made: pa.ChunkedArray) -> pa.ChunkedArray:
        lists = made.combine_chunks()
        return pa.chunked_array([pa.ListArray.from_arrays(lists.offsets, values.take(lists.values))])

    def of_all() -> pa.ChunkedArray:
        return pa.chunked_array([pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)])

    # By their places, because Arrow makes no lists of lists, structs and maps; and none at all without groups.
    return Plan([(asked.places, "list")], of_groups) if asked.keyed else Plan([], of_all)


_PLANS: dict[str, Callable[[Asked], Plan]] = {
    "sum": _sum, "mean": _mean, "stddev": _spread, "variance": _spread, "min": _min, "max": _max,
    "count": lambda asked: Plan([(asked.values, "count")]), "count_distinct": _count_distinct,
    "any": _holds, "all": _holds, "first": _first, "last": _last, "list": _list,
}  # fmt: skip
