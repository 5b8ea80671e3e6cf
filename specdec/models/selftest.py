"""Is a row's result independent of how many rows are computed with it?  Measured on the model at hand.

When it holds, verifying K + 1 tokens in one pass gives bit for bit the logits that decoding one by one gives, and
greedy speculative output equals the baseline in bf16 too.  It is a fact about a model, a processor, a library and a
thread count, so it is recorded with every result; `remembered` measures it once for each of these.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable

import torch

from specdec.models.attention import NARROW
from specdec.models.kvcache import BLOCK
from specdec.models.native.build import identity, kept
from specdec.models.transformer import Transformer

WIDTHS = (2, 3, 4, 5, 8, 9, 12, 16, 17, 24, 32)


def width_invariant(model: Transformer, widths: tuple[int, ...] = WIDTHS, start: int = BLOCK - 20) -> bool:
    """Whether logits are bit-identical for every width, across a block boundary of the cache."""
    generator = torch.Generator().manual_seed(0)
    total = start + NARROW
    if total > model.config.max_positions:
        start = max(0, model.config.max_positions - NARROW)
        total = min(start + NARROW, model.config.max_positions)
    tokens = torch.randint(model.vocabulary, (total,), generator=generator).tolist()
    cache = model.new_cache(total)
    if start:
        model.forward(tokens[:start], cache, logits=False)
    single = []
    for token in tokens[start:]:
        single.append(model.forward([token], cache).logits)
    reference = torch.cat(single)
    for width in widths:
        if start + width > total:
            continue
        cache.truncate(start)
        wide = model.forward(tokens[start : start + width], cache).logits
        if not torch.equal(wide, reference[:width]):
            return False
    return True


def remembered(model: Transformer, model_id: str, measure: Callable[[Transformer], bool] = width_invariant) -> bool:
    """`width_invariant`, kept in the user's cache folder: dozens of processes of a study ask the same."""
    if model.device.type != "cpu":
        return measure(model)
    native = model.native is not None
    held = model.weight_bytes()  # the same weights may be held in several formats
    asked = [model_id, str(model.dtype), held, torch.get_num_threads(), torch.__version__, native, identity()]
    name = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
    file = kept() / f"width-invariant-{name}.json"
    try:
        return bool(json.loads(file.read_text("utf-8"))["width_invariant"])
    except (OSError, ValueError, KeyError, TypeError):
        found = measure(model)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps({"width_invariant": found, "asked": asked}), "utf-8")
        aside.replace(file)
    except OSError:
        pass  # a folder that cannot be written costs the next process a third of a second
    return found
