"""Training text that the target writes itself.

Conversations are written in rows that are refilled as soon as one ends.  Each conversation's random choices depend on
the seed and its index alone; finished ones are written in parts, so that a killed run goes on with the conversations
that are missing.  Degenerate loops, duplicates and near copies of evaluation prompts are dropped and counted.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from specdec.loops import is_loop
from specdec.models import LoadedModel
from specdec.records import write_table
from specdec.training.conversation import Conversation, Plan, Template
from specdec.training.rows import RowCache, step

SCHEMA = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("ids", pa.list_(pa.int32()), nullable=False),
        pa.field("loss_mask", pa.list_(pa.bool_()), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("sampled", pa.bool_(), nullable=False),
        pa.field("dropped", pa.string()),
    ]
)
SHINGLE = 5
"""Near copies are judged by runs of this many words."""


@dataclass(frozen=True)
class Settings:
    """How text is written.  `answer_tokens` is where to stop."""

    answer_tokens: int
    seed: int = 0
    rows: int = 64
    max_user: int = 160
    max_answer: int = 256
    user_temperature: float = 1.0
    user_top_k: int = 50
    sampled_share: float = 0.25
    sampled_temperature: float = 0.8
    opener_share: float = 0.7
    second_turn_share: float = 0.15
    part: int = 256
    """Conversations a file part."""

    @property
    def capacity(self) -> int:
        return 64 + 2 * (self.max_user + self.max_answer)


def plans(settings: Settings, openers: list[tuple[int, ...]], first: int = 0) -> Iterator[Plan]:
    """Plans of self-written conversations without end; plan i depends on the seed and i alone."""
    index = first
    while True:
        random = np.random.default_rng([settings.seed, index])
        turns = 2 if random.random() < settings.second_turn_share else 1
        start = openers[random.integers(len(openers))] if random.random() < settings.opener_share else ()
        sampled = bool(random.random() < settings.sampled_share)
        yield Plan(index, settings.seed, (start, ())[:turns], sampled_answers=sampled)
        index += 1


def given_plans(
    conversations: Iterable[list[str]], loaded: LoadedModel, settings: Settings, source: str
) -> Iterator[Plan]:
    """Plans for user turns that come from a data set; the target answers them anew."""
    for index, turns in enumerate(conversations):
        random = np.random.default_rng([settings.seed, index])
        ids = tuple(tuple(loaded.tokenizer.inner.encode(turn, add_special_tokens=False)) for turn in turns)
        yield Plan(
            index,
            settings.seed,
            ids,
            given=True,
            sampled_answers=random.random() < settings.sampled_share,
            source=source,
        )


def load_openers(loaded: LoadedModel) -> list[tuple[int, ...]]:
    lines = files("specdec.training").joinpath("openers.txt").read_text("utf-8").splitlines()
    return [tuple(loaded.tokenizer.inner.encode(line, add_special_tokens=False)) for line in lines if line.strip()]


def write(loaded: LoadedModel, pending: Iterator[Plan], settings: Settings) -> Iterator[Conversation]:
    """Conversations as they end, in the order they end."""
    model, eos = loaded.model, frozenset(loaded.tokenizer.eos_ids)
    template = Template.of(loaded.tokenizer)
    opening = RowCache(model, 1, len(template.opening))
    for token in template.opening[:-1]:
        step(model, opening, [token])
    shared = len(template.opening) - 1
    cache = RowCache(model, settings.rows, settings.capacity)
    rows: list[Conversation | None] = [None] * settings.rows

    def refill(row: int) -> None:
        while (plan := next(pending, None)) is not None:
            conversation = Conversation(plan, template, eos, settings.max_user, settings.max_answer)
            if len(conversation.ids) + settings.max_answer < cache.capacity:
                cache.open(row, opening)
                rows[row], fed[row] = conversation, shared
                return
        rows[row], fed[row] = None, 0
        cache.lengths[row] = 0

    fed = [0] * settings.rows
    for row in range(settings.rows):
        refill(row)
    while any(rows):
        tokens = [rows[r].ids[fed[r]] if rows[r] else 0 for r in range(settings.rows)]
        logits = step(model, cache, tokens)
        due = []
        for r, conversation in enumerate(rows):
            if conversation is None:
                cache.lengths[r] = 0
                continue
            fed[r] += 1
            if fed[r] == len(conversation.ids):
                due.append(r)
        for r, token in zip(due, _choose(logits, due, rows, settings), strict=True):
            rows[r].take(token)
            if rows[r].finished or len(rows[r].ids) + 1 >= cache.capacity:
                yield rows[r]
                refill(r)


def _choose(logits: torch.Tensor, due: list[int], rows: list, settings: Settings) -> list[int]:
    """The next token of each due row: its argmax, or a draw from its top-k by the conversation's own random numbers."""
    greedy = [r for r in due if rows[r].greedy]
    sampled = [r for r in due if not rows[r].greedy]
    chosen: dict[int, int] = {}
    if greedy:
        chosen |= zip(greedy, logits[greedy].argmax(-1).tolist(), strict=True)
    if sampled:
        top = logits[sampled].float().topk(settings.user_top_k, dim=-1)
        heat = [settings.sampled_temperature if rows[r].answering else settings.user_temperature for r in sampled]
        law = (top.values / torch.tensor(heat)[:, None]).softmax(-1).cumsum(-1).numpy()
        for i, r in enumerate(sampled):
            at = min(int(np.searchsorted(law[i], rows[r].random.random())), settings.user_top_k - 1)
            chosen[r] = int(top.indices[i, at])
    return [chosen[r] for r in due]


class Filter:
    """Says why a conversation is not kept; remembers what it has seen."""

    def __init__(self, loaded: LoadedModel, evaluation: Iterable[str] = ()):
        self._decode = loaded.tokenizer.decode
        self._evaluation = {shingle for text in evaluation for shingle in shingles(text)}
        self._seen: set[tuple] = set()

    def remember(self, folder: Path) -> None:
        """What earlier parts of this text hold."""
        for part in sorted(folder.glob("part-*.parquet")):
            for row in pq.read_table(part, columns=["ids", "loss_mask"]).to_pylist():
                if True in row["loss_mask"]:
                    self._seen.add(tuple(row["ids"][: row["loss_mask"].index(True)]))

    def reason(self, conversation: Conversation) -> str | None:
        if not conversation.complete or not any(conversation.mask):
            return "unfinished"
        answer = [token for token, kept in zip(conversation.ids, conversation.mask, strict=True) if kept]
        asked = conversation.ids[: conversation.mask.index(True)]
        if is_loop(answer) or is_loop(asked):
            return "loop"
        own = shingles(self._decode(asked[len(conversation.template.opening) :]))
        if own and len(own & self._evaluation) > 0.3 * len(own):
            return "near_evaluation"
        key = tuple(asked)
        if key in self._seen or (prefix := tuple(answer[:48])) in self._seen:
            return "duplicate"
        self._seen |= {key, prefix}
        return None


def shingles(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + SHINGLE]) for i in range(len(words) - SHINGLE + 1)}


def synthesise(
    loaded: LoadedModel,
    folder: Path,
    settings: Settings,
    *,
    pending: Iterator[Plan] | None = None,
    evaluation: Iterable[str] = (),
    progress: Callable[[int, float], None] = lambda tokens, seconds: None,
) -> dict:
    """Write parts into `folder` until enough answer tokens are kept; returns the counts.

    Runs again where a killed run stopped: conversations that are already in a part are not written again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(asdict(settings), indent=2) + "\n", "utf-8")
    done, counts, kept = _resume(folder)
    source = pending or plans(settings, load_openers(loaded))
    missing = (plan for plan in source if plan.index not in done)
    judge, batch, begin = Filter(loaded, evaluation), [], time.monotonic()
    judge.remember(folder)
    written = 0
    for conversation in write(loaded, missing, settings):
        reason = judge.reason(conversation)
        counts[reason or "kept"] += 1
        answers = sum(conversation.mask)
        kept += answers if reason is None else 0
        written += answers
        batch.append(_row(conversation, reason))
        if len(batch) == settings.part:
            _flush(folder, batch)
            batch = []
            progress(kept, time.monotonic() - begin)
        if kept >= settings.answer_tokens:
            break
    if batch:
        _flush(folder, batch)
    seconds = time.monotonic() - begin
    return {"answer_tokens": kept, "seconds": seconds, "tokens_per_s": written / max(seconds, 1e-9), **counts}


def _row(conversation: Conversation, reason: str | None) -> dict:
    keep = reason is None
    return {
        "index": conversation.plan.index,
        "ids": conversation.ids if keep else [],
        "loss_mask": conversation.mask if keep else [],
        "source": conversation.plan.source,
        "seed": conversation.plan.seed,
        "sampled": conversation.plan.sampled_answers,
        "dropped": reason,
    }


def _flush(folder: Path, batch: list[dict]) -> None:
    number = len(list(folder.glob("part-*.parquet")))
    write_table(folder / f"part-{number:05d}.parquet", pa.Table.from_pylist(batch, schema=SCHEMA))


def _resume(folder: Path) -> tuple[set[int], Counter, int]:
    done, counts, kept = set(), Counter(), 0
    for part in sorted(folder.glob("part-*.parquet")):
        table = pq.read_table(part)
        done |= set(table["index"].to_pylist())
        counts.update(reason or "kept" for reason in table["dropped"].to_pylist())
        kept += sum(sum(mask) for mask in table["loss_mask"].to_pylist())
    return done, counts, kept
