"""A query whose SQL is worked out once.

Of what a short query costs, most is Django's work on its text: a decision asks some sixty, always the same but for
whose rows they are. `Prepared` builds and compiles a queryset once for each database, with marks where values
belong, and then runs that text with the values of each call. Rows, models, converters and the cursor are Django's own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.core.exceptions import EmptyResultSet, ObjectDoesNotExist
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import BigIntegerField, CharField, DateTimeField, Expression, Field, FloatField, QuerySet, Value
from django.db.models.sql import UpdateQuery
from django.db.models.sql.compiler import SQLCompiler

Row = TypeVar("Row")
TEXT: "Field[Any, Any]" = CharField()
NUMBER: "Field[Any, Any]" = BigIntegerField()
MOMENT: "Field[Any, Any]" = DateTimeField()
FIGURE: "Field[Any, Any]" = FloatField()
"""What most values are: keys and names, whole numbers, moments, measured numbers."""
MOST = 500
"""Values that one list may have in a text that is kept; a longer one is asked for by the queryset itself."""


@dataclass(frozen=True, slots=True)
class Several:
    """In the place of a field: a list of values of it, for `__in`. Lists are filled up with their last value to the
    next power of two, so that there are few texts."""

    of: "Field[Any, Any]"


class Mark(Expression):
    """In the place of a value that each call brings; of a list the value at `place`."""

    def __init__(self, name: str, field: "Field[Any, Any]", place: int | None = None) -> None:
        super().__init__(output_field=field)
        self.name, self.place = name, place

    def as_sql(self, *_args: Any) -> tuple[str, list[Any]]:
        """The mark itself stands among the parameters."""
        return "%s", [self]

    def value(self, given: Mapping[str, Any], connection: Any) -> Any:
        """What the database is given of it. Raises ValueError or ValidationError for what the field refuses."""
        value = given[self.name] if self.place is None else given[self.name][self.place]
        return self.output_field.get_db_prep_value(value, connection, prepared=False)


class Marks(Expression):
    """In the place of a list: one expression, since a lookup over a relation makes each of several values text."""

    def __init__(self, name: str, field: "Field[Any, Any]", size: int) -> None:
        super().__init__(output_field=field)
        self.marks = [Mark(name, field, place) for place in range(size)]

    def as_sql(self, *_args: Any) -> tuple[str, list[Any]]:
        """As many marks as there are values."""
        return f"({', '.join(['%s'] * len(self.marks))})", [*self.marks]


def figures_of(rows: "QuerySet[Any, Any]", **figures: Expression) -> "QuerySet[Any, tuple[Any, ...]]":
    """What `rows.aggregate(**figures)` gives, as the one row of a queryset."""
    over_all = rows.order_by().annotate(every=Value(1)).values("every")
    return over_all.annotate(**figures).values_list(*figures)


class Prepared(Generic[Row]):
    """`build(**marks)` makes a queryset, with one mark (of `Several`: one for `__in`) for each of `fields`. It may be
    sliced and give values; whatever else it says is worked out at its first call and stays: a moment or a setting is a
    mark too. Called with a value for each: all of its rows. None is no value: SQL compares with it in another way. A
    list without values finds nothing; of one with more than `MOST` the queryset is built anew."""

    def __init__(self, build: Callable[..., "QuerySet[Any, Row]"], **fields: "Field[Any, Any] | Several") -> None:
        self._build = build
        self._fields = fields
        self._compiled: dict[tuple[str, ...], _Compiled] = {}

    def __call__(self, **given: Any) -> list[Row]:
        return list(self._rows(given))

    def first(self, **given: Any) -> Row | None:
        """The first row, or None. How many the database looks for the queryset says."""
        return next(self._rows(given), None)

    def get(self, **given: Any) -> Row:
        """The first row. Raises ObjectDoesNotExist where there is none."""
        for row in self._rows(given):
            return row
        raise ObjectDoesNotExist(f"nothing is found for {given}")

    def _rows(self, given: dict[str, Any]) -> Iterator[Row]:
        """Raises TypeError for a value that is missing, not known, or None."""
        if given.keys() != self._fields.keys() or None in given.values():
            raise TypeError(f"a value is needed for each of: {', '.join(self._fields)}; given: {given}")
        sizes = {}
        for name, field in self._fields.items():
            if isinstance(field, Several):
                values = list(given[name])
                if not values:
                    return iter(())
                if len(values) > MOST:
                    return iter(self._build(**given))
                sizes[name] = 1 << (len(values) - 1).bit_length()
                given[name] = values + values[-1:] * (sizes[name] - len(values))
        connection = connections[DEFAULT_DB_ALIAS]
        key = (connection.vendor, *map(str, sizes.values()))
        if key not in self._compiled:
            self._compiled[key] = self._compile(sizes)
        found = self._compiled[key]
        return iter(found.bound(given, connection)) if found.text else iter(())

    def _compile(self, sizes: Mapping[str, int]) -> "_Compiled":
        queryset = self._build(**{name: _marks(name, field, sizes) for name, field in self._fields.items()})
        compiler = queryset.query.get_compiler(DEFAULT_DB_ALIAS)
        try:
            text, parameters = compiler.as_sql()
        except EmptyResultSet:
            return _Compiled(queryset, compiler, "", ())
        return _Compiled(queryset, compiler, text, tuple(parameters))


class Change:
    """As `Prepared`, of an update: `build(**marks)` gives the rows, by columns of their own table alone, and what
    becomes of which columns (values, marks, expressions of both). Called with a value for each of `fields`, it returns
    how many rows it changed. A value that is written may be None; rows are not sought by None."""

    def __init__(
        self,
        build: "Callable[..., tuple[QuerySet[Any, Any], dict[str, Any]]]",
        **fields: "Field[Any, Any]",
    ) -> None:
        self._build = build
        self._fields = fields
        self._compiled: dict[str, tuple[str, tuple[Any, ...]]] = {}

    def __call__(self, **given: Any) -> int:
        """Raises TypeError for a value that is missing or not known."""
        connection = connections[DEFAULT_DB_ALIAS]
        text, (values,) = self._bound([given], connection)
        with connection.cursor() as cursor:
            cursor.execute(text, values)
            return int(cursor.rowcount)

    def each(self, changes: Sequence[Mapping[str, Any]]) -> None:
        """One after the other, with the values of each. Raises as a single one does."""
        connection = connections[DEFAULT_DB_ALIAS]
        text, values = self._bound(changes, connection)
        with connection.cursor() as cursor:
            cursor.executemany(text, values)

    def _bound(self, changes: Sequence[Mapping[str, Any]], connection: Any) -> tuple[str, list[list[Any]]]:
        for given in changes:
            if given.keys() != self._fields.keys():
                raise TypeError(f"a value is needed for each of: {', '.join(self._fields)}; given: {given}")
        if connection.vendor not in self._compiled:
            self._compiled[connection.vendor] = self._compile()
        text, parameters = self._compiled[connection.vendor]
        # As a model is saved: of JSON, None is no value and not a null.
        return text, [
            [
                each.output_field.get_db_prep_save(given[each.name], connection) if isinstance(each, Mark) else each
                for each in parameters
            ]
            for given in changes
        ]

    def _compile(self) -> tuple[str, tuple[Any, ...]]:
        rows, columns = self._build(**{name: Mark(name, field) for name, field in self._fields.items()})
        query = rows.query.chain(UpdateQuery)
        query.add_update_values(columns)
        text, parameters = query.get_compiler(DEFAULT_DB_ALIAS).as_sql()
        return text, tuple(parameters)


def _marks(name: str, field: "Field[Any, Any] | Several", sizes: Mapping[str, int]) -> Mark | Marks:
    return Marks(name, field.of, sizes[name]) if isinstance(field, Several) else Mark(name, field)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """`text`: none where no row can ever be found. What Django reads while it gives rows is shared; connection and
    parameters are each call's own."""

    queryset: "QuerySet[Any, Any]"
    compiler: SQLCompiler
    text: str
    parameters: tuple[Any, ...]

    def bound(self, given: Mapping[str, Any], connection: Any) -> Any:
        """What Django's iterable of such rows reads, with these values."""
        values = [each.value(given, connection) if isinstance(each, Mark) else each for each in self.parameters]
        compiler = _like(self.compiler, connection=connection, as_sql=lambda: (self.text, values))
        query = _like(self.queryset.query, get_compiler=lambda *_args, **_named: compiler)
        return self.queryset._iterable_class(_like(self.queryset, _query=query))  # type: ignore[attr-defined]


def _like(value: Any, **changes: Any) -> Any:
    """A shallow copy, without what its class does when it is copied (a queryset reads its rows)."""
    made = object.__new__(type(value))
    made.__dict__.update(value.__dict__, **changes)
    return made
