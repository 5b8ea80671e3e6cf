"""Search which attention and MLP blocks a draft made of the target can do without (Draft & Verify, arXiv 2309.08168).

    python -m workflow.study.search_layers --k 2 --trials 200

Bayesian optimisation over one yes or no for every block, on the calibration prompts, none of which is ever reported on.
A set's score is the speedup that the cost model gives it: its tokens per round, decoded as the study decodes, over the
price of a round, from passes timed once at the start.  So within a search a set has one score, whatever else the
machine does meanwhile.  Sets that anybody would try, and the one configured, come first; the best of all is printed as
the keys of a draft, beside the decode speedups that it and a plain exit measure.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from specdec.drafters import Chain, LayerSkip
from specdec.drafters.layer_skip import is_exit
from specdec.errors import UserError
from specdec.growth import build_rule
from specdec.measure.alternate import alternate, median
from specdec.measure.clock import clock_for
from specdec.measure.cost_model import Costs
from specdec.measure.forward_times import seconds
from specdec.models.transformer import Plan, Transformer
from workflow.study.calibrate import Setting, exit_setting, scores, show, skipping_draft
from workflow.study.cells import Cell
from workflow.study.config import StudyConfig, load
from workflow.study.prompts import calibration_slice
from workflow.study.run_cell import Bench, encode

REPEATS = 9


@dataclass(frozen=True)
class Skips:
    """The layers whose attention is skipped, and those whose MLP is; ascending."""

    attention: tuple[int, ...] = ()
    mlp: tuple[int, ...] = ()

    @classmethod
    def of(cls, marks: Sequence[int]) -> Skips:
        """From one mark a block: the attention of every layer, then the MLPs."""
        half = len(marks) // 2
        chosen = (tuple(i for i in range(half) if part[i]) for part in (marks[:half], marks[half:]))
        return cls(*chosen)

    def marks(self, layers: int) -> list[int]:
        return [int(i in part) for part in (self.attention, self.mlp) for i in range(layers)]

    @property
    def options(self) -> tuple[tuple[str, object], ...]:
        """The keys of a draft's entry."""
        return ("layers", None), ("skip_attention", self.attention), ("skip_mlp", self.mlp)


@dataclass(frozen=True)
class BlockCosts:
    """Seconds at one row of one attention block, one MLP block and all that is no block; of target passes by width."""

    attention: float
    mlp: float
    rest: float
    passes: dict[int, float]

    def step(self, plan: Plan) -> float:
        """A draft step in baseline steps."""
        blocks = sum(attend * self.attention + mlp * self.mlp for _, attend, mlp in plan)
        return (self.rest + blocks) / self.passes[1]

    def price(self, plan: Plan, drafted: int) -> float:
        """Of a round, in baseline steps.  Of an exit's own layers, verification computes one row alone: the others have
        been through them."""
        whole = Costs(self.step(plan), lambda width: self.passes[width] / self.passes[1]).price(drafted)
        if not is_exit(plan):
            return whole
        again = len(plan) * (self.attention + self.mlp) / self.passes[1]
        return whole - again * (self.passes[drafted + 1] / self.passes[1] - 1)


def block_costs(target: Transformer, prompt: Sequence[int], k: int) -> BlockCosts:
    """Time passes over one row without attention, without MLPs and without both, and target passes of up to K + 1."""
    layers, cache = target.config.layers, target.new_cache(len(prompt) + k + 1)
    target.forward(prompt, cache, logits=False)
    base, clock = cache.length, clock_for(target.device)

    def call(width: int, plan: Plan | None) -> Callable[[], float]:
        def timed() -> float:
            cache.truncate(base)
            return seconds(clock, lambda: target.forward([prompt[0]] * width, cache, plan=plan))

        return timed

    parts = {"attention": tuple((i, True, False) for i in range(layers))}
    parts |= {"mlp": tuple((i, False, True) for i in range(layers)), "rest": ()}
    calls = {name: call(1, plan) for name, plan in parts.items()}
    calls |= {width: call(width, None) for width in range(1, k + 2)}
    found = {name: median(samples).value for name, samples in alternate(calls, REPEATS).items()}
    attention, mlp = ((found[name] - found["rest"]) / layers for name in ("attention", "mlp"))
    return BlockCosts(attention, mlp, found["rest"], {width: found[width] for width in range(1, k + 2)})


@dataclass
class Objective:
    """The modelled decode speedup of a set of skipped blocks; every set is decoded once."""

    bench: Bench
    prompts: list[list[int]]
    costs: BlockCosts
    k: int

    def __post_init__(self):
        self.seen: dict[Skips, float] = {}

    def __call__(self, skips: Skips) -> float:
        if skips not in self.seen:
            self.seen[skips] = self._score(skips)
        return self.seen[skips]

    def _score(self, skips: Skips) -> float:
        if not (skips.attention or skips.mlp):
            return 0.0  # the whole target is no draft
        model = LayerSkip(self.bench.target.model, **dict(skips.options))
        tokens, price = 0, 0.0
        for i, ids in enumerate(self.prompts):
            drafter = Chain(model, build_rule("fixed", self.k))
            record = self.bench.generation_with(drafter, self.k, ids, f"search-{i}").run()
            tokens += len(record.output_ids)
            price += sum(self.costs.price(model.plan, found.drafted) for found in record.rounds)
        return tokens / price


def starts(layers: int) -> Iterator[Skips]:
    """What is tried first: every other block of a kind or of both, exits, and single blocks in the middle."""
    odd, middle = tuple(range(1, layers, 2)), tuple(range(layers // 3, 2 * layers // 3))
    yield from (Skips(odd), Skips((), odd), Skips(odd, odd), Skips(middle), Skips((), middle), Skips(middle, middle))
    for left in sorted({layers - 1, layers - max(1, layers // 10), layers - max(1, layers // 5)}, reverse=True):
        beyond = tuple(range(left, layers))
        yield Skips(beyond, beyond)
    yield Skips((layers // 2,))
    yield Skips((), (layers // 2,))


def search(
    objective: Callable[[Skips], float], layers: int, trials: int, seed: int = 0, first: Sequence[Skips] = ()
) -> tuple[Skips, float]:
    """The best set of `trials` and its score; `first` are tried first.  Raises `UserError` without Optuna."""
    try:
        import optuna
    except ImportError:
        raise UserError(
            "the search needs the package optuna, which is not installed; it is part of requirements.txt: "
            "env/run pip install -r requirements.txt"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.GPSampler(seed=seed))
    names = [f"{kind}_{layer}" for kind in ("attention", "mlp") for layer in range(layers)]
    for skips in dict.fromkeys(first):
        study.enqueue_trial(dict(zip(names, skips.marks(layers), strict=True)))

    def trial_score(trial) -> float:
        score = objective(Skips.of([trial.suggest_int(name, 0, 1) for name in names]))
        print(f"{trial.number + 1} of {trials}: {score:.3f}", file=sys.stderr, flush=True)
        return score

    study.optimize(trial_score, n_trials=trials)
    return Skips.of([study.best_params[name] for name in names]), study.best_value


def objective_of(config: StudyConfig, draft: str, k: int, tokens: int, prompts: int | None) -> Objective:
    every = calibration_slice(config)
    if not every:
        raise UserError("prompts.calibration_per_category is 0: there is nothing to search on")
    count = len(every) if prompts is None else prompts
    if not 1 <= count <= len(every):
        raise UserError(f"--prompts {count}: must be between 1 and the {len(every)} calibration prompts")
    chosen = [every[i * len(every) // count] for i in range(count)]  # they stand by category
    bench = Bench.of(config, Cell(config.pair, draft, "fixed", k, dtype=config.run.dtype))
    bench = replace(bench, max_new_tokens=tokens)
    ids = [encode(bench, prompt, []) for prompt in chosen]
    return Objective(bench, ids, block_costs(bench.target.model, ids[0], k), k)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workflow.study.search_layers", description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="config.yaml", type=Path, metavar="FILE")
    parser.add_argument("--k", default=2, type=int, metavar="K", help="drafted tokens a round (default: 2)")
    parser.add_argument("--trials", default=200, type=int, metavar="N", help="sets to try (default: 200)")
    parser.add_argument("--tokens", default=32, type=int, metavar="N", help="tokens a prompt (default: 32)")
    parser.add_argument("--prompts", type=int, metavar="N", help="of the calibration prompts (default: all)")
    parser.add_argument("--seed", default=0, type=int, metavar="N", help="of the search (default: 0)")
    flags = parser.parse_args(arguments)
    try:
        config = load(flags.config)
        os.environ.setdefault("OMP_NUM_THREADS", str(config.threads()))
        draft = skipping_draft(config)
        objective = objective_of(config, draft, flags.k, flags.tokens, flags.prompts)
        layers, spec = objective.bench.target.model.config.layers, config.draft(draft)
        beyond = tuple(range(spec.layers or layers, layers))
        known = Skips(*(tuple(sorted({*own, *beyond})) for own in (spec.skip_attention, spec.skip_mlp)))
        first = [known, *starts(layers)]
        best, modelled = search(objective, layers, flags.trials, flags.seed, first)
        print(f"modelled decode speedup {modelled:.3f}; measured:", file=sys.stderr)
        found = Setting(draft, "fixed", flags.k, options=best.options)
        show(scores(config, draft, [found, exit_setting(draft, max(1, layers - layers // 5), flags.k)], flags.tokens))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    entry = {"kind": "layer_skip", "skip_attention": list(best.attention), "skip_mlp": list(best.mlp)}
    print(yaml.safe_dump({draft: entry}, sort_keys=False, default_flow_style=None), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
