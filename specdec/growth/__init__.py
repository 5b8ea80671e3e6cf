"""Propose, second half: how a step-by-step draft grows, and when it stops.

A grower turns a `DraftModel` into a drafter.  `grower.py` holds what all of them share.  `chain.py` grows one token a
level, and the rules of `depth*.py` decide how deep; the trees are `static_tree.py`, `sampled_tree.py`, `eagle2.py` and
`opt_tree.py`; `coarse_fine.py` lets two growers take turns.  `sequoia.py` fits a static tree to measurements, `trie.py`
merges chains that come from elsewhere.  `build.py` and `rules.py` are the tables of names.
"""

from specdec.growth.build import GROWERS, LEVEL_RULES, build_grower
from specdec.growth.chain import Chain
from specdec.growth.coarse_fine import CoarseFine
from specdec.growth.depth import DepthRule
from specdec.growth.eagle2 import Eagle2
from specdec.growth.grower import Grower
from specdec.growth.levels import Always, Ddd, LevelRule
from specdec.growth.opt_tree import OptTree
from specdec.growth.rules import RULES, build_rule
from specdec.growth.sampled_tree import SampledTree
from specdec.growth.static_tree import StaticTree

__all__ = [
    "GROWERS",
    "LEVEL_RULES",
    "RULES",
    "Always",
    "Chain",
    "CoarseFine",
    "Ddd",
    "DepthRule",
    "Eagle2",
    "Grower",
    "LevelRule",
    "OptTree",
    "SampledTree",
    "StaticTree",
    "build_grower",
    "build_rule",
]
