"""Verify: which drafted nodes stay, and what comes after them.

A verifier is a pure function of (draft, target rows, stream) that returns a `Verdict`; its inputs are never changed.
Each declares the laws and shapes it is exact for, and the loop refuses the others by name.
"""

from specdec.errors import unknown
from specdec.verifiers.base import TargetRows, Verdict, Verifier
from specdec.verifiers.block import Block
from specdec.verifiers.greedy import Greedy
from specdec.verifiers.recursive import Recursive
from specdec.verifiers.rejection import Rejection
from specdec.verifiers.sample_and_match import SampleAndMatch
from specdec.verifiers.spectr import SpecTr
from specdec.verifiers.traversal import Traversal
from specdec.verifiers.typical import Typical

VERIFIERS: dict[str, type[Verifier]] = {
    "greedy": Greedy,
    "rejection": Rejection,
    "sample_and_match": SampleAndMatch,
    "recursive": Recursive,
    "spectr": SpecTr,
    "block": Block,
    "traversal": Traversal,
    "typical": Typical,
}


def build_verifier(name: str) -> Verifier:
    if name not in VERIFIERS:
        raise unknown("verifier", name, VERIFIERS)
    return VERIFIERS[name]()


__all__ = ["VERIFIERS", "TargetRows", "Verdict", "Verifier", "build_verifier"]
