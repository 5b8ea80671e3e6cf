"""Propose, second half: how a step-by-step draft grows, and when it stops.

A grower turns a `DraftModel` into a drafter.  `chain.py` grows one token a level; `depth.py` holds the rules that
decide how deep.
"""

from specdec.growth.chain import Chain
from specdec.growth.depth import RULES, DepthRule, build_rule

__all__ = ["RULES", "Chain", "DepthRule", "build_rule"]
