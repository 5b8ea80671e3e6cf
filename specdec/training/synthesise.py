"""Training text that the target writes itself.

Conversations are written in rows that are refilled as soon as one ends.  Each conversation's random choices depend on
the seed and its index alone; finished ones are written in parts, so that a killed run goes on with the conversations
that are missing.  What is not kept is counted by its reason.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from specdec.errors import UserError, unknown
from specdec.models import LoadedModel
from specdec.records import write_table
from specdec.training.conversation import TOO_LONG, Conversation, Plan, Template, encode
from specdec.training.judging import Judge
from specdec.training.parts import PATTERN
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
TOKEN_BYTES = 6
"""A stored token takes at most this much: an id, its mask bit, and what the file adds."""


@dataclass(frozen=True)
class Settings:
    """How text is written.  `answer_tokens` is where to stop; it alone may change when a run goes on."""

    answer_tokens: int
    seed: int = 0
    rows: int = 64
    max_user: int = 160
    max_answer: int = 256
    cut_requests: bool = False
    """End a request that reaches `max_user`; else such a conversation is dropped."""
    user_temperature: float = 1.0
    user_top_k: int = 50
    sampled_share: float = 0.25
    sampled_temperature: float = 0.8
    opener_share: float = 0.7
    openers: str = "requests"
    """Which file of beginnings, of those in `openers/`."""
    second_turn_share: float = 0.15
    enable_thinking: bool | None = None
    capacity: int = 896
    """Tokens a conversation may have; a given one that is longer is dropped."""
    part: int = 256
    """Conversations a file part."""


def plans(settings: Settings, openers: Sequence[tuple[int, ...]]) -> Iterator[Plan]:
    """Plans of self-written conversations without end; plan i depends on the seed and i alone."""
    index = 0
    while True:
        random = np.random.default_rng([settings.seed, index])
        turns = 2 if random.random() < settings.second_turn_share else 1
        start = openers[random.integers(len(openers))] if random.random() < settings.opener_share else ()
        sampled = bool(random.random() < settings.sampled_share)
        yield Plan(index, settings.seed, (start, ())[:turns], sampled_answers=sampled)
        index += 1


def given_plans(
    conversations: Iterable[Sequence[str]], loaded: LoadedModel, settings: Settings, source: str
) -> Iterator[Plan]:
    """Plans for user turns that come from a data set; the target answers them anew."""
    for index, turns in enumerate(conversations):
        random = np.random.default_rng([settings.seed, index])
        ids = tuple(encode(loaded.tokenizer, turn.strip()) for turn in turns)
        sampled = bool(random.random() < settings.sampled_share)
        yield Plan(index, settings.seed, ids, given=True, sampled_answers=sampled, source=source)


def load_openers(loaded: LoadedModel, name: str) -> list[tuple[int, ...]]:
    """How requests begin; a line each, in which \\n is a new line."""
    folder = files("specdec.training").joinpath("openers")
    known = sorted(Path(file.name).stem for file in folder.iterdir())
    if name not in known:
        raise unknown("openers", name, known)
    lines = folder.joinpath(f"{name}.txt").read_text("utf-8").splitlines()
    return [encode(loaded.tokenizer, line.replace("\\n", "\n")) for line in lines if line.strip()]


def write(loaded: LoadedModel, pending: Iterator[Plan], settings: Settings) -> Iterator[Conversation]:
    """Conversations as they end, in the order they end."""
    return _Writer(loaded, pending, settings).run()


class _Writer:
    """The rows being written: which conversation stands in each, and how many of its tokens were fed."""

    def __init__(self, loaded: LoadedModel, pending: Iterator[Plan], settings: Settings):
        self._model, self._pending, self._settings = loaded.model, pending, settings
        tokenizer, longest = loaded.tokenizer, loaded.model.config.max_positions
        if settings.capacity > longest:
            raise UserError(f"capacity = {settings.capacity}: the target's context holds {longest} tokens")
        self._eos = frozenset(tokenizer.eos_ids)
        self._special = frozenset(tokenizer.inner.all_special_ids) - self._eos
        self._template = Template.of(tokenizer, settings.enable_thinking)
        shared = self._template.opening[:-1]
        self._opening = RowCache(self._model, 1, len(shared) + 1)
        for token in shared:
            step(self._model, self._opening, [token])
        self._cache = RowCache(self._model, settings.rows, settings.capacity)
        self._rows: list[Conversation | None] = [None] * settings.rows
        self._fed = [0] * settings.rows

    def run(self) -> Iterator[Conversation]:
        for row in range(len(self._rows)):
            yield from self._refill(row)
        while any(self._rows):
            for row in self._advance():
                if self._rows[row].finished:
                    yield self._rows[row]
                    yield from self._refill(row)

    def _refill(self, row: int) -> Iterator[Conversation]:
        """Put the next conversation into `row`; yields those that are too long to be begun."""
        self._rows[row], self._fed[row] = None, 0
        for plan in self._pending:
            s = self._settings
            limits = s.max_user, s.max_answer, self._special, s.cut_requests
            conversation = Conversation(plan, self._template, self._eos, *limits)
            if len(conversation.ids) < s.capacity:
                self._cache.open(row, self._opening)
                self._rows[row], self._fed[row] = conversation, len(self._template.opening) - 1
                return
            conversation.drop(TOO_LONG)
            yield conversation

    def _advance(self) -> list[int]:
        """One token into every row; the rows whose conversation wrote one."""
        rows, fed = self._rows, self._fed
        for row, conversation in enumerate(rows):
            if conversation is None:
                self._cache.lengths[row] = 0
        logits = step(self._model, self._cache, [c.ids[fed[r]] if c else 0 for r, c in enumerate(rows)])
        due = []
        for row, conversation in enumerate(rows):
            if conversation is not None:
                fed[row] += 1
                if fed[row] == len(conversation.ids):
                    due.append(row)
        for row, token in zip(due, self._choose(logits, due), strict=True):
            rows[row].take(token)
            if not rows[row].finished and len(rows[row].ids) >= self._settings.capacity:
                rows[row].drop(TOO_LONG)
        return due

    def _choose(self, logits: torch.Tensor, due: list[int]) -> list[int]:
        """Each due row's next token: its argmax, or a draw from its top-k by the conversation's own random numbers."""
        rows, settings = self._rows, self._settings
        greedy = [r for r in due if rows[r].greedy]
        sampled = [r for r in due if not rows[r].greedy]
        chosen: dict[int, int] = {}
        if greedy:
            chosen |= zip(greedy, logits[greedy].argmax(-1).tolist(), strict=True)
        if sampled:
            count = min(settings.user_top_k, logits.shape[-1])
            top = logits[sampled].float().cpu().topk(count, dim=-1)
            heat = [settings.sampled_temperature if rows[r].answering else settings.user_temperature for r in sampled]
            law = (top.values / torch.tensor(heat)[:, None]).softmax(-1).cumsum(-1).numpy()
            for i, r in enumerate(sampled):
                at = min(int(np.searchsorted(law[i], rows[r].random.random())), count - 1)
                chosen[r] = int(top.indices[i, at])
        return [chosen[r] for r in due]


@dataclass(frozen=True)
class Estimate:
    """What a run will take: bytes on disk, and seconds at the rate of a few measured steps."""

    bytes: int
    seconds: float


def estimate(loaded: LoadedModel, settings: Settings, steps: int = 4) -> Estimate:
    """About half of what passes through the rows is answers, the rest prompts and what is not kept."""
    cache = RowCache(loaded.model, settings.rows, settings.capacity)
    cache.lengths += settings.capacity // 3
    tokens = [0] * settings.rows
    step(loaded.model, cache, tokens)
    begin = time.monotonic()
    for _ in range(steps):
        step(loaded.model, cache, tokens)
    rate = steps * settings.rows / (time.monotonic() - begin)
    return Estimate(2 * settings.answer_tokens * TOKEN_BYTES, 2 * settings.answer_tokens / rate)


def synthesise(
    loaded: LoadedModel,
    folder: Path,
    settings: Settings,
    *,
    pending: Iterator[Plan] | None = None,
    evaluation: Iterable[str] = (),
    progress: Callable[[int], None] = lambda tokens: None,
) -> dict:
    """Write parts into `folder` until enough answer tokens are kept; returns the counts.

    Runs again where a killed run stopped: conversations that are already in a part are not written again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _remember_settings(folder, settings, loaded)
    done, counts, kept = _resume(folder)
    source = pending or plans(settings, load_openers(loaded, settings.openers))
    missing = (plan for plan in source if plan.index not in done)
    judge, batch, begin = Judge(loaded.tokenizer, evaluation), [], time.monotonic()
    judge.remember(folder)
    written = 0
    progress(kept)
    for conversation in write(loaded, missing, settings) if kept < settings.answer_tokens else ():
        reason = judge.reason(conversation)
        counts[reason or "kept"] += 1
        answers = sum(conversation.mask)
        kept += answers if reason is None else 0
        written += answers
        batch.append(_row(conversation, reason))
        progress(kept)
        if len(batch) == settings.part:
            _flush(folder, batch)
            batch = []
        if kept >= settings.answer_tokens:
            break
    if batch:
        _flush(folder, batch)
    seconds = time.monotonic() - begin
    return {"answer_tokens": kept, "seconds": seconds, "tokens_per_s": written / max(seconds, 1e-9), **counts}


def _remember_settings(folder: Path, settings: Settings, loaded: LoadedModel) -> None:
    """Write them down; a folder that holds text of other settings or another target is refused."""
    path = folder / "settings.json"
    ours = {**asdict(settings), "target": loaded.model_id, "tokenizer": loaded.tokenizer.fingerprint}
    if path.is_file():
        # a setting that is newer than the text was at its default
        theirs = asdict(Settings(0)) | json.loads(path.read_text("utf-8"))
        for key, value in ours.items():
            if key not in ("answer_tokens", "rows", "part") and theirs.get(key) != value:
                raise UserError(f"{folder}: its text was written with {key} = {theirs.get(key)}, not {value}")
    path.write_text(json.dumps(ours, indent=2) + "\n", "utf-8")


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
    number = len(list(folder.glob(PATTERN)))
    write_table(folder / f"part-{number:05d}.parquet", pa.Table.from_pylist(batch, schema=SCHEMA))


def _resume(folder: Path) -> tuple[set[int], Counter, int]:
    """Indices that are written, counts by reason, answer tokens kept."""
    done, counts, kept = set(), Counter(), 0
    for part in sorted(folder.glob(PATTERN)):
        table = pq.read_table(part)
        done |= set(table["index"].to_pylist())
        counts.update(reason or "kept" for reason in table["dropped"].to_pylist())
        kept += sum(sum(mask) for mask in table["loss_mask"].to_pylist())
    return done, counts, kept
