"""Prompts of the kind that drafts are trained on: the first requests of conversations held out from their text.

The conversations are those that no training has seen (`specdec.training.corpus.hold_out`); of them, a slice by the rank
of a hash of seed and index, as for every other set of prompts.
"""

from __future__ import annotations

import json
from pathlib import Path

from specdec.errors import UserError
from specdec.models.tokenizer import Tokenizer
from specdec.training.conversation import Template
from specdec.training.corpus import Sample, hold_out, read_text
from workflow.study.columns import write_text
from workflow.study.prompts import rank

CATEGORY = "own_kind"


def write_prompts(text: Path, tokenizer: Tokenizer, output: Path, *, count: int, seed: int, thinking: bool | None):
    """Write `count` requests, or as many as there are, as a file of prompts."""
    template = Template.of(tokenizer, thinking)
    _, held = hold_out(read_text(text))
    ranked = sorted(held, key=lambda sample: rank(seed, sample.name))
    lines = []
    for sample in ranked:
        if request := tokenizer.decode(request_of(sample, template, text)).strip():
            prompt = {"question_id": f"{CATEGORY}_{sample.name}", "category": CATEGORY, "turns": [request]}
            lines.append(json.dumps(prompt, ensure_ascii=False))
        if len(lines) == count:
            break
    if not lines:
        raise UserError(f"{text}: none of its held-out conversations has a request")
    write_text(output, "\n".join(lines) + "\n")


def request_of(sample: Sample, template: Template, text: Path) -> tuple[int, ...]:
    """What the user says first, without the template around it."""
    end = sample.mask.index(True) - len(template.to_answer)
    begin = len(template.opening)
    if sample.ids[:begin] != template.opening or sample.ids[end : end + len(template.to_answer)] != template.to_answer:
        raise UserError(f"{text}: conversation {sample.index} does not begin with the target's chat template")
    return sample.ids[begin:end]
