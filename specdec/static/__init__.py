"""Decoding with static shapes and buffers: what a CUDA graph can hold.

A round is two pieces of work on the device, the draft's steps and the target's pass with its verdict.  Both read and
write buffers that are made once; how far the text has come is a number on the device, so that every round is the same
work on the same addresses.  On a GPU each piece is captured as a graph and replayed; elsewhere the very same code runs
as it stands, so that what a GPU adds is the capture alone.  The host waits once a round, for the verdict.

This covers the baseline and chains of a fixed depth drafted by a second model, verified greedily or by rejection.
Confidence rules cost a look by the host at every step and trees change their shape: they run eagerly (`decode.py`).
"""

from specdec.static.decode import StaticDecoder, StaticGeneration, check_static

__all__ = ["StaticDecoder", "StaticGeneration", "check_static"]
