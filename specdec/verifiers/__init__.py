"""Verify: which drafted nodes stay, and what comes after them.

A verifier is a pure function of (draft, target rows, stream) that returns a `Verdict`; its inputs are never changed.
Each declares the laws and shapes it is exact for, and the loop refuses the others by name.
"""

from specdec.errors import unknown
from specdec.verifiers.base import TargetRows, Verdict, Verifier
from specdec.verifiers.greedy import Greedy
from specdec.verifiers.rejection import Rejection

VERIFIERS: dict[str, type[Verifier]] = {"greedy": Greedy, "rejection": Rejection}


def build_verifier(name: str) -> Verifier:
    if name not in VERIFIERS:
        raise unknown("verifier", name, VERIFIERS)
    return VERIFIERS[name]()


__all__ = ["VERIFIERS", "TargetRows", "Verdict", "Verifier", "build_verifier"]
