"""How numbers look: digits, signs and units, words for small counts.  These are the templates' filters.

A filter never invents: given nothing it raises, and a table that may have holes asks for `cell`.
"""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from workflow.study.named import ReportError, is_empty

MINUS, TIMES, DASH, THIN = "\u2212", "\u00d7", "\u2013", "\u2009"


def number(value: float, digits: int = 2) -> str:
    """Fixed digits, thousands set apart by a thin space, a true minus sign: −1 234.50."""
    if is_empty(value):
        raise ReportError("a number to be printed is missing")
    return f"{value:,.{digits}f}".replace(",", THIN).replace("-", MINUS)


WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def worded(value: int) -> str:
    """A count in running text: three, 13."""
    return WORDS[value] if 0 <= value < len(WORDS) else integer(value)


def integer(value: float) -> str:
    return number(value, 0)


def times(value: float, digits: int = 2) -> str:
    """A factor: 1.25×."""
    return number(value, digits) + TIMES


def percent(value: float, digits: int = 0) -> str:
    """A share as a percentage: 0.25 -> 25%; below one percent with one digit more."""
    if digits == 0 and 0 < abs(value) < 0.01:
        return "<0.1%" if abs(value) < 0.001 else number(100 * value, 1) + "%"
    return number(100 * value, digits) + "%"


def milliseconds(value: float) -> str:
    """Three significant digits are enough: 12.3 ms, 123 ms."""
    return number(value, 2 if value < 10 else 1 if value < 100 else 0) + "\u00a0ms"


def bytes_(value: float) -> str:
    """Bytes in decimal units: 269 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000 or unit == "GB":
            return number(value, 0 if unit in ("B", "kB", "MB") else 1) + "\u00a0" + unit
        value /= 1000
    raise AssertionError


def p_value(value: float) -> str:
    """Three digits, never a bare zero: <0.001."""
    return "<0.001" if value < 0.001 else number(value, 3)


def plain(value: float) -> str:
    """As short as it is: 0.3, 2, 1e-05; for thresholds and temperatures."""
    return f"{value:g}".replace("-", MINUS)


def compact(value: float) -> str:
    """For crowded tables: integers whole, other numbers with at most four significant digits."""
    return str(value) if isinstance(value, int) else f"{value:.4g}".replace("-", MINUS)


def breakable(text: str) -> Markup:
    """Long names, paths and hashes may break after a separator, and anywhere if they must."""
    return Markup(re.sub(r"([._/:,=-])", r"\1<wbr>", str(escape(text)).replace("&#", "\0")).replace("\0", "&#"))


def cell(value, form: str = "plain", *arguments) -> str:
    """A table cell that may be empty: a dash, or the value in the form named."""
    if is_empty(value):
        return DASH
    if isinstance(value, bool | str):
        return str(value)
    return FILTERS[form](value, *arguments)


FILTERS = {
    "number": number,
    "integer": integer,
    "worded": worded,
    "times": times,
    "percent": percent,
    "milliseconds": milliseconds,
    "bytes": bytes_,
    "p_value": p_value,
    "plain": plain,
    "compact": compact,
    "breakable": breakable,
    "cell": cell,
}
