"""Speculative decoding: propose, score, verify, commit.

A round is always the same four moves.  `drafters/` and `growth/` hold who proposes and how a proposal grows, `models/`
scores it in one target pass, `verifiers/` decide what stays, and `decode.py` commits: the loop alone owns state.
"""

__version__ = "0.1.0"
