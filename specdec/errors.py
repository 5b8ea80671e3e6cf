"""The one error that speaks to a user.

A `UserError` carries one message that names the thing, the value and what is allowed.  The command line and the
workflow's scripts print it without a traceback and exit with a code that is not 0; anything else is a defect of ours
and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake the user can mend: the message says where and how."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """' (did you mean "x"?)' when one of `allowed` is close to `name`, else the empty string."""
    close = difflib.get_close_matches(str(name), list(allowed), n=1, cutoff=0.6)
    return f' (did you mean "{close[0]}"?)' if close else ""


def unknown(what: str, name: object, allowed: Iterable[str]) -> UserError:
    """The error for a name that is in no registry: names the value, the nearest valid one and all that are allowed."""
    names = sorted(allowed)
    return UserError(f'unknown {what} "{name}"{nearest(str(name), names)}; allowed: {", ".join(names)}')
