"""What `generate` and `bench` share: loading the models that the flags name, and building drafters from them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import torch
from torch import Tensor

from specdec.decode import ONE_TEXT
from specdec.drafters import KINDS, Eagle, build_drafter, check_k, check_nodes
from specdec.drafters.base import Drafter, Nothing
from specdec.errors import UserError
from specdec.models import LoadedModel, load_model
from specdec.models.catalogue import locate
from specdec.models.loading import read_head_ids
from specdec.models.tokenizer import check_shared
from specdec.sampling import GREEDY, Sampling
from specdec.static import StaticDecoder, check_static
from specdec.verifiers import build_verifier

LOOKUP = "+ngram"
TREE_NODES = 25
"""The largest tree where none is asked for: that of EAGLE-1."""


def load_target(flags: argparse.Namespace, weights: str | None = None) -> LoadedModel:
    """The target, with the thread count in force; `weights` as in `load_model`."""
    if flags.threads is not None and flags.threads < 1:
        raise UserError(f"--threads {flags.threads}: must be 1 or more")
    torch.set_num_threads(flags.threads or len(os.sched_getaffinity(0)))
    return load_model(locate(flags.model), dtype=flags.dtype, device=flags.device, weights=weights)


def check_batch(flags: argparse.Namespace) -> None:
    if flags.batch_size != 1:
        raise UserError(f"--batch-size {flags.batch_size}: {ONE_TEXT}")


def drafter_factory(flags: argparse.Namespace, target: LoadedModel, name: str) -> Callable[[], Drafter]:
    """A function that makes the drafter called `name` anew for each prompt."""
    check_k(flags.k)
    if name == "none":
        return Nothing
    name, lookup = _looked_up(name)
    draft, held = None, flags.draft_weights
    if held is not None and name.split(":")[0] in ("ngram", "layer_skip"):
        raise UserError(f"--draft-weights {held}: --draft {name} has no weights of its own; a head or a model has")
    if name == "ngram":
        spec = {"kind": "ngram"}
    elif name.split(":")[0] == "layer_skip":
        layers = name.partition(":")[2] or "4"
        if not layers.isdigit():
            raise UserError(f'--draft {name}: "{layers}" is no number of layers; as in layer_skip:4')
        spec = {"kind": "layer_skip", "layers": int(layers)}
    elif name.split(":")[0] == "eagle":
        folder, ids = _cut_head(name.partition(":")[2])
        if not folder:
            raise UserError(f"--draft {name}: the head's folder is missing; as in eagle:FOLDER")
        spec, draft = {"kind": "eagle", "head": folder}, Eagle.load(folder, target.model, ids, held)
    else:
        name, ids = _cut_head(name)
        spec = {"kind": "language_model", "vocabulary": None if ids is None else len(ids)}
        where = {"dtype": flags.dtype, "device": flags.device}
        draft = load_model(locate(name), **where, head_ids=ids, weights=held)
        check_shared(target.tokenizer, draft.tokenizer)

    def make() -> Drafter:
        return build_drafter(
            spec | lookup,
            target.model,
            policy=flags.policy,
            k=flags.k,
            threshold=flags.threshold,
            draft=draft,
            shape=flags.shape,
            tokenizer=target.tokenizer,
        )

    make()  # wrong options show now, not at the first prompt
    return make


def static_decoder(
    flags: argparse.Namespace,
    target: LoadedModel,
    name: str,
    drafter: Drafter,
    capacity: int,
    sampling: Sampling = GREEDY,
) -> StaticDecoder:
    """What `--static` decodes with, for texts of up to `capacity` tokens; refuses what that does not cover."""
    drafting = not isinstance(drafter, Nothing)
    if drafting:
        if _looked_up(name)[1]:
            raise UserError(f"--draft {name}: static decoding covers no lookup; leave --static off, or {LOOKUP} away")
        kind = name.split(":")[0]
        check_static(kind if kind in KINDS else "language_model", flags.policy, flags.shape, flags.verifier, sampling)
    return StaticDecoder(target.model, drafter, k=flags.k, capacity=capacity, sampling=sampling)


def _looked_up(name: str) -> tuple[str, dict]:
    """The draft's own name, and what the ending that lets prompt lookup guess first adds to its entry."""
    if not name.endswith(LOOKUP):
        return name, {}
    return name.removesuffix(LOOKUP), {"lookup": {"max_ngram": 4, "min_ngram": 2}}


def _cut_head(name: str) -> tuple[str, Tensor | None]:
    """MODEL or MODEL@FILE:N, a model or a head's folder; it is cut to the first N token ids of the file."""
    model, _, listed = name.rpartition("@")
    file, _, size = listed.rpartition(":")
    if not (model and file and size.isdigit()):
        return name, None
    return model, read_head_ids(file, int(size))


def rounds_of(flags: argparse.Namespace, drafting: bool) -> dict:
    """Keyword arguments of `speculative`: depth, nodes and verifier."""
    if not drafting:
        return {"k": 0}
    nodes = flags.nodes
    if nodes is None and flags.shape != "chain":
        nodes = TREE_NODES
    verifier = None if flags.verifier is None else build_verifier(flags.verifier)
    return {"k": flags.k, "nodes": None if nodes is None else check_nodes(nodes), "verifier": verifier}
