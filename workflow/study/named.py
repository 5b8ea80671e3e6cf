"""Named values: what the templates may say, each under a dotted name.

A template that asks for a value that is absent or empty stops the build with that name, so no sentence is ever printed
around a hole.  Where a hole is meant (an empty table cell), the template asks with `.get(name)` and prints a dash.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from specdec.errors import UserError


class ReportError(UserError):
    """The report cannot be built; the message names what is missing or wrong."""


def is_empty(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


class Values(Mapping):
    """A read-only mapping with a dotted path; nested mappings and lists of mappings are wrapped on the way."""

    def __init__(self, data: Mapping, path: str = ""):
        self._data = data
        self._path = path

    def __getitem__(self, name: str):
        path = f"{self._path}.{name}" if self._path else str(name)
        value = self._data.get(name)
        if is_empty(value):
            raise ReportError(f"the report needs the value {path}, which the results do not give")
        return self._wrap(value, path)

    def get(self, name: str, default=None):
        value = self._data.get(name)
        path = f"{self._path}.{name}" if self._path else str(name)
        return default if is_empty(value) else self._wrap(value, path)

    def has(self, name: str) -> bool:
        return not is_empty(self._data.get(name))

    def __contains__(self, name: object) -> bool:
        return self.has(str(name))

    def __iter__(self) -> Iterator:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    @staticmethod
    def _wrap(value, path: str):
        if isinstance(value, Values):
            return value
        if isinstance(value, Mapping):
            return Values(value, path)
        if isinstance(value, list | tuple):
            return [Values._wrap(item, f"{path}[{index}]") for index, item in enumerate(value)]
        return value


def locate(row: Mapping, table: str) -> Values:
    """A table row whose path says which row it is: `fixed_k[small fixed K=4]`."""
    return Values(row, f"{table}[{row.get('draft')} {row.get('policy')} K={row.get('k')}]")
