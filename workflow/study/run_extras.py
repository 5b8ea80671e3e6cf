"""What a cell records beside its rounds, outside timed sections: an example tree, and what a rule did to the text."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specdec.decode import Generation
from specdec.models.kvcache import KVCache
from specdec.models.tokenizer import Tokenizer
from specdec.models.transformer import Transformer
from specdec.sampling import Stream
from specdec.tree import Draft
from specdec.verifiers import TargetRows, Verdict, Verifier, build_verifier
from specdec.verifiers.typical import distance

Watched = list[tuple[Draft, Verdict]]


def run(generation: Generation, watched: Watched | None = None) -> None:
    """All rounds; between two of them, what was drafted and what became of it is kept where asked for."""
    for record in generation:
        if watched is not None and record.source != "cut":
            watched.append((generation.draft, generation.verdict))


def example_tree(watched: Watched, prompt_id: str, tokenizer: Tokenizer) -> dict | None:
    """The round with the longest accepted path, the first of equal ones: its nodes with their texts."""
    if not watched:
        return None
    place = max(range(len(watched)), key=lambda index: (len(watched[index][1].path), -index))
    draft, verdict = watched[place]
    confidence = draft.confidence or (None,) * len(draft)
    nodes = [
        {"token": token, "text": tokenizer.decode([token]), "parent": parent, "confidence": chance, "accepted": kept}
        for token, parent, chance, kept in zip(
            draft.tokens, draft.parents, confidence, (node in verdict.path for node in range(len(draft))), strict=True
        )
    ]
    return {"prompt_id": prompt_id, "round": place + 1, "next": tokenizer.decode([verdict.next_token]), "nodes": nodes}


@torch.inference_mode()
def negative_log_likelihood(model: Transformer, cache: KVCache, prompt: Sequence[int], output: Sequence[int]) -> float:
    """Minus the log-likelihood, in nats, that the target gives to `output` at temperature 1.

    `cache` begins with the prompt's rows, as the generation of `output` leaves it; the output's are written anew.
    """
    cache.truncate(len(prompt) - 1)
    logits = model.forward([prompt[-1], *output[:-1]], cache).logits
    z = logits if logits.dtype == torch.float64 else logits.float()
    chosen = z.gather(-1, torch.tensor(output, device=z.device)[:, None])[:, 0]
    return float((z.logsumexp(-1) - chosen).sum())


class Witness(Verifier):
    """A lossy rule that adds up how far it moves the text from the target's own."""

    lossless = False

    def __init__(self, name: str):
        self.name, self.rule, self.differing = name, build_verifier(name), 0.0

    def verify(self, draft: Draft, rows: TargetRows, stream: Stream) -> Verdict:
        verdict = self.rule.verify(draft, rows, stream)
        self.differing += distance(draft, rows, verdict.path)
        return verdict
