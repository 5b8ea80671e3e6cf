"""Run one cell: both arms over the same prompts, alternating in one process, and one parquet file.

Prompt by prompt the baseline and the speculative arm take turns, and who goes first alternates, so that a machine that
drifts hits both alike.  The cell of the baseline runs it against itself: its ratio is the noise floor.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch

from specdec import records
from specdec.decode import Generation, Request, autoregressive, speculative
from specdec.drafters import Eagle, build_drafter
from specdec.drafters.base import Drafter, Nothing
from specdec.errors import UserError
from specdec.loops import is_loop
from specdec.measure import fingerprint
from specdec.measure.audit import audit
from specdec.measure.clock import Clock
from specdec.models import LoadedModel, load_model
from specdec.models.loading import read_head_ids
from specdec.models.selftest import remembered
from specdec.models.tokenizer import check_shared
from specdec.sampling import Sampling
from specdec.static import StaticDecoder, StaticGeneration
from specdec.static.rounds import WINDOW
from specdec.verifiers import Verifier, build_verifier
from workflow.study import legal
from workflow.study.calibration import Calibration
from workflow.study.cells import Cell
from workflow.study.config import CHAIN, EagleDraft, LanguageModelDraft, StudyConfig
from workflow.study.prompts import Prompt, slice_of
from workflow.study.run_extras import Watched, Witness, example_tree, negative_log_likelihood, run
from workflow.study.run_shape import engine_options

WARM_ROUNDS = 12
"""Of a generation before the timed ones."""
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Bench:
    """What a cell runs on: the loaded models and the settings that every generation shares."""

    config: StudyConfig
    cell: Cell
    target: LoadedModel
    draft: LoadedModel | Eagle | None
    sampling: Sampling
    max_new_tokens: int
    calibration: Calibration | None = None
    _decoders: dict[tuple[int, Sampling], StaticDecoder] = field(default_factory=dict, compare=False)
    """Of static cells, by K and sampling; made anew for a text longer than what there is room for."""

    @classmethod
    def of(
        cls,
        config: StudyConfig,
        cell: Cell,
        calibration: Calibration | None = None,
        target: LoadedModel | None = None,
    ) -> Bench:
        """`target`: where it is loaded already, in the cell's number format."""
        pair, run = config.pair_in_force(), config.run
        torch.set_num_threads(config.threads())
        target = target or load_model(config.model_path(pair.target), dtype=cell.dtype, device=run.device)
        spec = None if cell.draft == "none" else config.draft(cell.draft)
        draft = None
        listed = None if spec is None else config.vocabulary_path(cell.draft)
        ids = None if listed is None else read_head_ids(listed, spec.vocabulary)
        if isinstance(spec, LanguageModelDraft):
            where = {"dtype": cell.dtype, "device": run.device}
            draft = load_model(config.model_path(spec.model), **where, head_ids=ids, weights=spec.weights)
            check_shared(target.tokenizer, draft.tokenizer)
        elif isinstance(spec, EagleDraft):
            draft = Eagle.load(config.head_path(cell.draft), target.model, ids, spec.weights)
        sampling = Sampling(
            cell.temperature, config.sampling.top_k, config.sampling.top_p, config.sampling.draft_temperature
        )
        return cls(config, cell, target, draft, sampling, config.max_new_tokens(cell.dtype), calibration)

    def drafter(self) -> Drafter:
        cell = self.cell
        if cell.draft == "none":
            return Nothing()
        spec = self.config.drafter_spec(cell.draft)
        options = engine_options(self.config, cell, self.calibration)
        model, tokenizer = self.target.model, self.target.tokenizer
        return build_drafter(spec, model, k=cell.k, draft=self.draft, tokenizer=tokenizer, **options)

    def generation(self, arm: str, ids: Sequence[int], prompt_id: str, clock: Clock | None = None) -> Generation:
        if legal.static(self.config, self.cell):
            drafter, k = (Nothing(), 0) if arm == "ar" else (self.drafter(), self.cell.k)
            return self._static(drafter, k, self._request(ids, prompt_id), clock)
        if arm == "ar":
            return self.generation_with(None, 0, ids, prompt_id, clock=clock)
        return self.generation_with(self.drafter(), self.cell.k, ids, prompt_id, nodes=self.nodes, clock=clock)

    @property
    def nodes(self) -> int | None:
        """The node budget of a tree; a chain's is its depth."""
        return None if self.cell.shape == CHAIN else self.cell.nodes

    def generation_with(
        self,
        drafter: Drafter | None,
        k: int,
        ids: Sequence[int],
        prompt_id: str,
        *,
        nodes: int | None = None,
        verifier: Verifier | None = None,
        clock: Clock | None = None,
    ) -> Generation:
        """A generation about to start; without a drafter, the baseline's.  The verifier is the cell's unless given."""
        request = self._request(ids, prompt_id)
        if drafter is None:
            return autoregressive(self.target.model, request, clock=clock)
        verifier = verifier or build_verifier(self.cell.verifier)
        return speculative(self.target.model, drafter, request, k=k, nodes=nodes, verifier=verifier, clock=clock)

    def _request(self, ids: Sequence[int], prompt_id: str) -> Request:
        cell, ends = self.cell, self.target.tokenizer.eos_ids
        return Request(
            prompt=ids,
            max_new_tokens=self.max_new_tokens,
            sampling=self.sampling,
            seed=cell.seed,
            prompt_id=prompt_id,
            eos_ids=frozenset() if cell.ignore_eos else frozenset(ends),
        )

    def endless(self, drafter: Drafter | None, ids: Sequence[int], tokens: int) -> Generation:
        """A greedy generation of exactly so many tokens: the end of text is a token like any other."""
        request = Request(prompt=ids, max_new_tokens=tokens)
        if legal.static(self.config, self.cell):
            return self._static(drafter or Nothing(), 0 if drafter is None else self.cell.k, request, None)
        return (
            autoregressive(self.target.model, request)
            if drafter is None
            else speculative(self.target.model, drafter, request, k=self.cell.k)
        )

    def _static(self, drafter: Drafter, k: int, request: Request, clock: Clock | None) -> StaticGeneration:
        model = self.target.model
        needed = min(len(request.prompt) + request.max_new_tokens, model.config.max_positions)
        made = self._decoders.get((k, request.sampling))
        if made is None or made.capacity < needed:
            capacity = min(-(-needed // WINDOW) * WINDOW, model.config.max_positions)
            made = StaticDecoder(model, drafter, k=k, capacity=capacity, sampling=request.sampling)
            self._decoders[k, request.sampling] = made
        return made.generation(request, clock)

    @property
    def draft_bytes(self) -> int:
        """Weights that one draft step reads."""
        if isinstance(self.draft, Eagle):
            return self.draft.weight_bytes
        if self.draft is not None:
            return self.draft.model.weight_bytes()
        model = getattr(self.drafter(), "model", None)
        return self.target.model.weight_bytes(model.plan) if model is not None else 0


def run_cell(config: StudyConfig, cell: Cell, output: Path, calibration: Path | None = None) -> None:
    """Decode every prompt of the slice in both arms and write `output`, whole or not at all.

    `calibration`: the file of the cell's draft, where its method needs one.
    """
    legal.check(config, cell)
    bench = Bench.of(config, cell, None if calibration is None else Calibration.load(calibration))
    prompts = slice_of(config, cell.prompt_set)
    device = config.run.device
    invariant = remembered(bench.target.model, bench.target.model_id)
    blocks = {
        "hardware": fingerprint.hardware(device),
        "environment": fingerprint.environment(cell.dtype, device, invariant),
        "model": {"target": bench.target.model_id, "draft": bench.draft.model_id if bench.draft else None},
        "code": fingerprint.code(ROOT),
    }
    ids = {f"{name}_id": fingerprint.identity(block) for name, block in blocks.items()}
    before = fingerprint.state(device)
    for _ in range(config.run.warmup):
        _warm(bench, prompts[0])
    rows: list[dict] = []
    watched: Watched = []
    for repetition in range(config.run.repetitions):
        for i, prompt in enumerate(prompts):
            swap = (i + repetition) % 2 == 1
            order = ("speculative", "ar") if swap else ("ar", "speculative")
            new = _run_prompt(bench, prompt, repetition, order, watched if i == repetition == 0 else None)
            rows += [row | ids for row in new]
            _progress(cell, i, len(prompts), new)
    state = {"before": before, "after": fingerprint.state(device)}
    example = None if cell.shape == CHAIN else example_tree(watched, prompts[0].prompt_id, bench.target.tokenizer)
    records.write(output, rows, {**blocks, "state": state, "cell": cell.columns(), "example": example})


def _warm(bench: Bench, prompt: Prompt) -> None:
    """The prefill and the first rounds of both arms: memory is there afterwards, and a graph is captured."""
    ids = encode(bench, prompt, [])
    for arm in ("ar", "speculative"):
        rounds = iter(bench.generation(arm, ids, f"warmup-{prompt.prompt_id}"))
        for _ in islice(rounds, WARM_ROUNDS):
            pass


def _run_prompt(
    bench: Bench, prompt: Prompt, repetition: int, order: tuple[str, ...], watched: Watched | None
) -> list[dict]:
    """Rows of every turn.  A later turn continues from the baseline's answer in both arms."""
    rows, answers = [], []
    for turn in range(len(prompt.turns)):
        ids = encode(bench, prompt, answers)
        made = {arm: bench.generation(arm, ids, f"{prompt.prompt_id}/{turn}") for arm in order}
        for arm, generation in made.items():
            run(generation, watched if arm == "speculative" else None)
        rows += [_row(bench, prompt, turn, repetition, arm, ids, made) for arm in ("ar", "speculative")]
        answers.append(bench.target.tokenizer.decode(made["ar"].record.output_ids))
    return rows


def encode(bench: Bench, prompt: Prompt, answers: list[str]) -> list[int]:
    messages = []
    for i, text in enumerate(prompt.turns[: len(answers) + 1]):
        messages.append({"role": "user", "content": text})
        if i < len(answers):
            messages.append({"role": "assistant", "content": answers[i]})
    thinking = bench.config.pair_in_force().chat.enable_thinking
    ids = bench.target.tokenizer.chat(messages, enable_thinking=thinking)
    longest = bench.target.model.config.max_positions
    if len(ids) >= longest:
        raise UserError(f"prompt {prompt.prompt_id}: {len(ids)} tokens, but the target's context holds {longest}")
    return ids


def _row(bench: Bench, prompt: Prompt, turn: int, repetition: int, arm: str, ids: list[int], made: dict) -> dict:
    cell, config, generation = bench.cell, bench.config, made[arm]
    record = generation.record
    row = {
        **cell.columns(),
        **record.columns(),
        "static": isinstance(generation, StaticGeneration),
        "prompt_id": prompt.prompt_id,
        "category": prompt.category,
        "turn": turn,
        "repetition": repetition,
        "arm": arm,
        "warmup": False,
        "prompt_sha": _sha(ids),
        "output_sha": _sha(record.output_ids),
        "loop": is_loop(record.output_ids),
        "weights_bytes": bench.target.model.weight_bytes(),
        "draft_weights_bytes": 0 if arm == "ar" else bench.draft_bytes,
        "cache_bytes": generation.cache.bytes,
        "peak_bytes": fingerprint.peak_bytes(config.run.device),
        "top_k": bench.sampling.top_k,
        "top_p": bench.sampling.top_p,
        "draft_temperature": bench.sampling.for_draft.temperature,
        "max_new_tokens": bench.max_new_tokens,
        "ignore_eos": cell.ignore_eos,
        "eos_ids": list(bench.target.tokenizer.eos_ids),
    }
    if not bench.sampling.greedy:
        row["nll"] = negative_log_likelihood(bench.target.model, generation.cache, ids, record.output_ids)
        if arm == "speculative" and not legal.VERIFIERS[cell.verifier].lossless and cell.shape == CHAIN:
            row["differing"] = _differing(bench, ids, f"{prompt.prompt_id}/{turn}", record.output_ids)
    if arm == "speculative" and bench.sampling.greedy:
        found = audit(bench.target.model, ids, made["ar"].record.output_ids, record.output_ids)
        if found is not None:
            row |= {"first_divergence": found.index, "gap": found.gap, "divergence": found.kind}
    return row


def _differing(bench: Bench, ids: list[int], name: str, output: list[int]) -> float | None:
    """The same generation once more, untimed, with a witness beside the rule."""
    witness = Witness(bench.cell.verifier)
    again = bench.generation_with(bench.drafter(), bench.cell.k, ids, name, nodes=bench.nodes, verifier=witness)
    if again.run().output_ids != output:  # arithmetic that is not the same twice: then nothing is said of this text
        print(f"{bench.cell.name}: {name} was not written twice alike", file=sys.stderr)
        return None
    return witness.differing


def _sha(ids: Sequence[int]) -> str:
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]


def _progress(cell: Cell, i: int, total: int, rows: list[dict]) -> None:
    speed = {arm: sum(r["tokens"] for r in rows if r["arm"] == arm) for arm in ("ar", "speculative")}
    seconds = {arm: sum(r["total_s"] for r in rows if r["arm"] == arm) for arm in ("ar", "speculative")}
    print(
        f"{cell.name}: prompt {i + 1} of {total}, {speed['ar'] / seconds['ar']:.1f} tokens/s alone, "
        f"{speed['speculative'] / seconds['speculative']:.1f} with the draft",
        file=sys.stderr,
        flush=True,
    )
