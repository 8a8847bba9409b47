"""Subjects of curves: the run, of layers, groups, modules or blocks; which columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fastapi import HTTPException

from gradwatch_server.curves.columns import LAYER_COLUMNS, RUN_COLUMNS
from gradwatch_server.curves.items import ITEM_COLUMNS, ItemKind, table_of
from gradwatch_server.curves.layers import KnownLayers, nearest
from gradwatch_wire.columns import L2

SHOWN_NAMES: Final = 5

_OF_ITEMS: Final[Mapping[str, tuple[ItemKind, ...]]] = {
    "group": (ItemKind.GROUP, ItemKind.PAIR),
    "module": (ItemKind.MODULE,),
    "block": (ItemKind.BLOCK,),
}
"""Parameter to what its values may be names of."""

_COLUMNS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "layer": tuple(LAYER_COLUMNS),
    **{
        parameter: tuple(name for kind in kinds for name in ITEM_COLUMNS[kind])
        for parameter, kinds in _OF_ITEMS.items()
    },
}
"""Parameter to the columns of what it names."""


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """Something that has curves of its own.

    Args:
        parameter: By which it was asked for, and how it is called in the answer.
        kind: What it is, None of a layer.
    """

    parameter: str
    name: str
    kind: ItemKind | None
    place: int

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(LAYER_COLUMNS) if self.kind is None else ITEM_COLUMNS[self.kind]


@dataclass(frozen=True, slots=True)
class SeriesTable:
    """Curves of one table."""

    column: str
    table: str
    subjects: Sequence[SeriesKey]

    @property
    def places(self) -> list[int]:
        return [subject.place for subject in self.subjects]


@dataclass(frozen=True, slots=True)
class SeriesRequest:
    """Parameters of a request.

    Args:
        names: Parameter to the names that it has.
    """

    columns: Sequence[str] = ()
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def check(self) -> None:
        """Check the columns."""
        given = [parameter for parameter in _COLUMNS_OF if self.names.get(parameter)]
        for name in self.columns:
            owners = [parameter for parameter, columns in _COLUMNS_OF.items() if name in columns]
            if name not in RUN_COLUMNS and not owners:
                raise HTTPException(422, f"query column: no column {name[:80]!a}; {_all()}")
            if name not in RUN_COLUMNS and not set(owners) & set(given):
                of, add = " or ".join(f"a {owner}" for owner in owners), f"{owners[0]}=NAME"
                raise HTTPException(422, f"query column: {name} is of {of}; add {add}")

    @property
    def of_run(self) -> list[str]:
        if not self.columns and not any(self.names.values()):
            return ["norm"]
        return [name for name in dict.fromkeys(self.columns) if name in RUN_COLUMNS]

    def tables(self, known: KnownLayers) -> list[SeriesTable]:
        """Return the tables that are asked for, column by column as they were named."""
        subjects = list(self._find(known))
        keys_by_table: dict[tuple[str, str], list[SeriesKey]] = {}
        for subject in subjects:
            for column in self._columns_of(subject):
                table = column if subject.kind is None else table_of(subject.kind, column)
                keys_by_table.setdefault((column, table), []).append(subject)
        order = list(dict.fromkeys(self.columns))
        had = {column for column, _ in keys_by_table}
        for name in order:
            if name not in RUN_COLUMNS and name not in had:
                told = ", ".join(
                    f"{subject.name[:120]!a} has {', '.join(subject.columns)}"
                    for subject in subjects
                )
                raise HTTPException(422, f"query column: {name} is of none that is named; {told}")
        ranked = sorted(
            keys_by_table, key=lambda key: order.index(key[0]) if key[0] in order else 0
        )
        return [
            SeriesTable(column, table, keys_by_table[column, table]) for column, table in ranked
        ]

    def _columns_of(self, subject: SeriesKey) -> Sequence[str]:
        columns = subject.columns
        if not self.columns:
            return [L2] if L2 in columns else columns[:1]
        return [name for name in dict.fromkeys(self.columns) if name in columns]

    def _find(self, known: KnownLayers) -> Iterator[SeriesKey]:
        for parameter, names in self.names.items():
            for name in dict.fromkeys(names):
                if parameter == "layer":
                    yield SeriesKey(parameter, name, None, place_of(name, known))
                else:
                    yield from _items(parameter, name, known)


def _items(parameter: str, name: str, known: KnownLayers) -> Iterator[SeriesKey]:
    """Yield what a name is of: a group may be called as a pair of others is."""
    kinds = _OF_ITEMS[parameter]
    matches = [kind for kind in kinds if name in known.items.get(kind, ())]
    if not matches:
        names = [item for kind in kinds for item in known.items.get(kind, ())]
        raise HTTPException(404, f"no {parameter} {name[:120]!a}; {_known(parameter, name, names)}")
    for kind in matches:
        yield SeriesKey(parameter, name, kind, known.items[kind].index(name))


def _known(parameter: str, name: str, names: Sequence[str]) -> str:
    if not names:
        return f"this attempt has no {parameter} with a curve"
    shown = nearest(name, names) or names[:SHOWN_NAMES]
    told = ", ".join(ascii(each[:120]) for each in shown)
    more = len(names) - len(shown)
    return f"there are {told}" + (f" and {more} more" if more else "")


def _all() -> str:
    told = [f"of the run {', '.join(RUN_COLUMNS)}"]
    told += [f"of a {parameter} {', '.join(columns)}" for parameter, columns in _COLUMNS_OF.items()]
    return f"there are {'; '.join(told)}"


def place_of(name: str, known: KnownLayers) -> int:
    """Return the place of a layer."""
    place = known.places.get(name)
    if place is not None:
        return place
    near = ", ".join(ascii(each[:120]) for each in known.near(name))
    hint = f"the nearest names are {near}" if near else "/layers has the names"
    raise HTTPException(404, f"no layer {name[:120]!a}; {hint}")
