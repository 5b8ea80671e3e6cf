"""What a generation leaves behind, and the parquet file that keeps it.

One `RoundRecord` a round (propose, score, verify, commit); one `GenerationRecord` a generation, whose per-round values
are list columns of one parquet row.  Counts are stored, ratios are derived from them elsewhere.

A file is written whole or not at all: to a temporary name in the same folder, flushed, then renamed into place.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from specdec.errors import UserError

SOURCES = ("bonus", "correction", "cut")
"""Where the last token of a round came from: after full acceptance, after a rejection, or lost to a cut."""


@dataclass(frozen=True)
class RoundRecord:
    """One round.  `tokens` are the ids it added to the text, already cut at end of text or length.

    `requested` is the depth the loop allowed (K, remaining tokens and context considered), `drafted` the nodes that
    were proposed, `accepted` those kept after the cut; times are seconds.  `confidence` is that of the draft's nodes
    (`specdec.tree`), `path` the accepted nodes before the cut.
    """

    tokens: tuple[int, ...]
    requested: int
    drafted: int
    accepted: int
    source: str
    stopped: str
    draft_s: float
    target_s: float
    other_s: float
    stop_reason: str | None = None
    confidence: tuple[float, ...] = ()
    path: tuple[int, ...] = ()

    @property
    def seconds(self) -> float:
        return self.draft_s + self.target_s + self.other_s


@dataclass
class GenerationRecord:
    """A whole generation: prefill times (seconds), rounds in order, and why it ended."""

    prompt_tokens: int
    prefill_target_s: float = 0.0
    prefill_draft_s: float = 0.0
    rounds: list[RoundRecord] = field(default_factory=list)

    @property
    def output_ids(self) -> list[int]:
        return [token for record in self.rounds for token in record.tokens]

    @property
    def stop_reason(self) -> str | None:
        return self.rounds[-1].stop_reason if self.rounds else None

    @property
    def decode_s(self) -> float:
        return sum(record.seconds for record in self.rounds)

    @property
    def total_s(self) -> float:
        return self.prefill_target_s + self.prefill_draft_s + self.decode_s

    @property
    def ttft_s(self) -> float:
        """Time to first token: prefill of both models and the first round."""
        first = self.rounds[0].seconds if self.rounds else 0.0
        return self.prefill_target_s + self.prefill_draft_s + first

    def columns(self) -> dict:
        """The parquet columns that come from the generation itself."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "output_ids": self.output_ids,
            "tokens": len(self.output_ids),
            "rounds": len(self.rounds),
            **{name: [getattr(r, name) for r in self.rounds] for name in ROUND_COLUMNS},
            **{name: [list(getattr(r, name)) for r in self.rounds] for name in NODE_COLUMNS},
            "prefill_target_s": self.prefill_target_s,
            "prefill_draft_s": self.prefill_draft_s,
            "decode_s": self.decode_s,
            "total_s": self.total_s,
            "ttft_s": self.ttft_s,
            "stop_reason": self.stop_reason,
        }


ROUND_COLUMNS = ("requested", "drafted", "accepted", "source", "stopped", "draft_s", "target_s", "other_s")
NODE_COLUMNS = ("confidence", "path")
"""A list a round."""

_INTS, _TEXTS, _FLOATS = pa.list_(pa.int32()), pa.list_(pa.string()), pa.list_(pa.float64())

SCHEMA = pa.schema(
    [
        # the cell
        pa.field("pair", pa.string(), nullable=False),
        pa.field("draft", pa.string(), nullable=False),
        pa.field("policy", pa.string(), nullable=False),
        pa.field("k", pa.int64(), nullable=False),
        pa.field("threshold", pa.float64()),
        pa.field("temperature", pa.float64(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("shape", pa.string(), nullable=False),
        pa.field("nodes", pa.int64(), nullable=False),
        pa.field("verifier", pa.string(), nullable=False),
        pa.field("dtype", pa.string(), nullable=False),
        pa.field("prompt_set", pa.string(), nullable=False),
        # over fixed buffers, on a GPU captured (`specdec.static`)
        pa.field("static", pa.bool_(), nullable=False),
        # the row
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("category", pa.string(), nullable=False),
        pa.field("turn", pa.int64(), nullable=False),
        pa.field("repetition", pa.int64(), nullable=False),
        pa.field("arm", pa.string(), nullable=False),
        pa.field("warmup", pa.bool_(), nullable=False),
        pa.field("prompt_sha", pa.string(), nullable=False),
        pa.field("output_sha", pa.string(), nullable=False),
        pa.field("prompt_tokens", pa.int64(), nullable=False),
        pa.field("output_ids", _INTS, nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("rounds", pa.int64(), nullable=False),
        # one entry a round
        pa.field("requested", _INTS, nullable=False),
        pa.field("drafted", _INTS, nullable=False),
        pa.field("accepted", _INTS, nullable=False),
        pa.field("source", _TEXTS, nullable=False),
        pa.field("stopped", _TEXTS, nullable=False),
        pa.field("draft_s", _FLOATS, nullable=False),
        pa.field("target_s", _FLOATS, nullable=False),
        pa.field("other_s", _FLOATS, nullable=False),
        # one list a round: the chance that the draft gives each node, and the nodes accepted
        pa.field("confidence", pa.list_(pa.list_(pa.float32())), nullable=False),
        pa.field("path", pa.list_(_INTS), nullable=False),
        # times in seconds, sizes in bytes
        pa.field("prefill_target_s", pa.float64(), nullable=False),
        pa.field("prefill_draft_s", pa.float64(), nullable=False),
        pa.field("decode_s", pa.float64(), nullable=False),
        pa.field("total_s", pa.float64(), nullable=False),
        pa.field("ttft_s", pa.float64(), nullable=False),
        pa.field("stop_reason", pa.string(), nullable=False),
        pa.field("loop", pa.bool_(), nullable=False),
        pa.field("weights_bytes", pa.int64(), nullable=False),
        pa.field("draft_weights_bytes", pa.int64(), nullable=False),
        pa.field("cache_bytes", pa.int64(), nullable=False),
        pa.field("peak_bytes", pa.int64(), nullable=False),
        # greedy rows of the speculative arm that differ from the baseline's: where, by how much, and what it means
        pa.field("first_divergence", pa.int64()),
        pa.field("gap", pa.float64()),
        pa.field("divergence", pa.string()),
        # above temperature 0: minus the log-likelihood that the target gives to the text, in nats; under a lossy rule
        # also how many of its tokens the target itself would have drawn otherwise
        pa.field("nll", pa.float64()),
        pa.field("differing", pa.float64()),
        # sampling in force
        pa.field("top_k", pa.int64()),
        pa.field("top_p", pa.float64()),
        pa.field("draft_temperature", pa.float64(), nullable=False),
        pa.field("max_new_tokens", pa.int64(), nullable=False),
        pa.field("ignore_eos", pa.bool_(), nullable=False),
        pa.field("eos_ids", _INTS, nullable=False),
        # where and with what
        pa.field("hardware_id", pa.string(), nullable=False),
        pa.field("environment_id", pa.string(), nullable=False),
        pa.field("model_id", pa.string(), nullable=False),
        pa.field("code_id", pa.string(), nullable=False),
    ]
)


def write(path: str | Path, rows: list[dict], metadata: dict) -> None:
    """Write the rows of one cell; `metadata` (the full fingerprint among it) goes into the file as JSON.

    Raises `UserError` when the disk is full or the folder cannot be written; nothing partial is left under `path`.
    """
    schema = SCHEMA.with_metadata({"specdec": json.dumps(metadata, sort_keys=True)})
    table = pa.Table.from_pylist(rows, schema=schema)
    write_table(path, table)


def write_table(path: str | Path, table: pa.Table) -> None:
    """Write any table whole or not at all."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as sink:
                pq.write_table(table, sink)
                sink.flush()
                os.fsync(sink.fileno())
            os.umask(mask := os.umask(0))
            os.chmod(temporary, 0o666 & ~mask)  # a temporary file is private; a result is as readable as any other
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error}); nothing was changed there") from error


def read(path: str | Path) -> tuple[pa.Table, dict]:
    """Read one cell's file: the table, checked against the schema, and the metadata written with it."""
    path = Path(path)
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; the rule that makes it has not run") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not a whole parquet file ({error}); delete it and run again") from error
    missing = [name for name in SCHEMA.names if name not in table.schema.names]
    if missing:
        raise UserError(f"{path}: column {missing[0]} is missing; delete the file and run again")
    raw = (table.schema.metadata or {}).get(b"specdec", b"{}")
    return table, json.loads(raw)
