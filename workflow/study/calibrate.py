"""Choose thresholds and the best K on the calibration prompts, none of which is ever reported on.

What methods need measured besides, costs and acceptance, is the business of the rule `calibrate` (`measuring.py`).

    python -m workflow.study.calibrate            # prints the block `calibration:` of config.yaml for the pair in force
    python -m workflow.study.calibrate --drafts eagle3       # the same for some of its drafts
    python -m workflow.study.calibrate --layers 2 4 8 24     # compares exits of layer_skip first

Prompt by prompt the baseline and every setting take turns in one process; a setting's score is its decode speedup, the
ratio of summed seconds per token.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import yaml

from specdec.drafters import build_drafter
from specdec.errors import UserError
from specdec.measure import fingerprint
from workflow.study.cells import Cell
from workflow.study.config import LayerSkipDraft, NgramDraft, StudyConfig, load
from workflow.study.config.experiments import THRESHOLD_RULES
from workflow.study.prompts import calibration_slice
from workflow.study.run_cell import Bench, encode


@dataclass(frozen=True)
class Setting:
    """A draft, perhaps of other options than configured, under a policy."""

    draft: str
    policy: str
    k: int
    threshold: float | None = None
    options: tuple[tuple[str, object], ...] = ()
    """Keys of the draft's entry that are other than configured."""

    def drafter(self, bench: Bench):
        spec = bench.config.drafter_spec(self.draft) | dict(self.options)
        return build_drafter(
            spec,
            bench.target.model,
            policy=self.policy,
            k=self.k,
            threshold=self.threshold,
            draft=bench.draft,
            tokenizer=bench.target.tokenizer,
        )


def settings_of(config: StudyConfig, draft: str) -> Iterator[Setting]:
    """Every fixed K and, for a draft that guesses step by step, every rule of the size in force at every threshold."""
    for k in config.experiments.fixed_k.k:
        yield Setting(draft, "fixed", k)
    if isinstance(config.draft(draft), NgramDraft):
        return
    dynamic = config.experiments.dynamic_k
    for rule in (rule for rule in config.rules if rule in THRESHOLD_RULES):
        for threshold in dynamic.thresholds.of(rule):
            yield Setting(draft, rule, dynamic.k, threshold)


def scores(config: StudyConfig, draft: str, settings: list[Setting], tokens: int) -> dict[Setting, float]:
    """Decode speedup of each setting over all calibration prompts."""
    bench = Bench.of(config, Cell(config.pair, draft, "fixed", 1))
    bench = replace(bench, max_new_tokens=tokens)
    prompts = calibration_slice(config)
    if not prompts:
        raise UserError("prompts.calibration_per_category is 0: there is nothing to calibrate on")
    seconds = {setting: 0.0 for setting in settings}
    baseline = 0.0
    for i, prompt in enumerate(prompts):
        ids = encode(bench, prompt, [])
        for j in range(len(settings) + 1):
            at = (i + j) % (len(settings) + 1)  # the order turns from prompt to prompt
            setting = settings[at] if at < len(settings) else None
            drafter = setting.drafter(bench) if setting else None
            record = bench.generation_with(drafter, setting.k if setting else 0, ids, f"calibration-{i}").run()
            if i == 0 and j == 0:
                record = bench.generation_with(drafter, setting.k if setting else 0, ids, f"calibration-{i}").run()
            if setting:
                seconds[setting] += record.decode_s / len(record.output_ids)
            else:
                baseline += record.decode_s / len(record.output_ids)
        print(f"{draft}: prompt {i + 1} of {len(prompts)}", file=sys.stderr, flush=True)
    return {setting: baseline / spent for setting, spent in seconds.items()}


def skipping_draft(config: StudyConfig) -> str:
    """The pair's draft made of the target's own blocks."""
    names = [name for name, draft in config.pair_in_force().drafts.items() if isinstance(draft, LayerSkipDraft)]
    if not names:
        raise UserError(f"pair {config.pair}: has no layer_skip draft")
    return names[0]


def exit_setting(draft: str, layers: int, k: int) -> Setting:
    return Setting(draft, "fixed", k, options=(("layers", layers), ("skip_attention", ()), ("skip_mlp", ())))


def calibrate(config: StudyConfig, tokens: int, drafts: list[str]) -> dict:
    """The block of `calibration:` for drafts of the pair in force."""
    processor = fingerprint.hardware(config.run.device)["processor"]
    block: dict = {}
    for draft in drafts:
        if how := config.missing(draft):
            raise UserError(how)
        settings = list(settings_of(config, draft))
        found = scores(config, draft, settings, tokens)
        show(found)
        fixed = {setting.k: score for setting, score in found.items() if setting.policy == "fixed"}
        best = max(fixed, key=fixed.get)
        entry: dict = {"best_k": best}
        for rule in THRESHOLD_RULES:
            of_rule = {s.threshold: score for s, score in found.items() if s.policy == rule}
            if of_rule:
                entry.setdefault("thresholds", {})[rule] = max(of_rule, key=of_rule.get)
        entry["provenance"] = (
            f"decode speedup on {len(calibration_slice(config))} calibration prompts of {tokens} tokens, "
            f"{processor}, {config.threads()} threads, {date.today():%Y-%m-%d}"
        )
        block[draft] = entry
    return {config.pair: block}


def show(found: dict[Setting, float]) -> None:
    for setting, score in sorted(found.items(), key=lambda item: -item[1]):
        parts = [setting.draft, setting.policy, f"K={setting.k}"]
        parts += [f"threshold={setting.threshold:g}"] if setting.threshold is not None else []
        parts += [f"{name}={value}" for name, value in setting.options]
        print(f"{score:.3f}  {' '.join(parts)}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m workflow.study.calibrate", description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="config.yaml", type=Path, metavar="FILE")
    parser.add_argument("--tokens", default=32, type=int, metavar="N", help="tokens a prompt (default: 32)")
    parser.add_argument("--drafts", nargs="+", metavar="NAME", help="these drafts (default: all with fixed depths)")
    parser.add_argument("--layers", nargs="+", type=int, metavar="E", help="compare these exits of layer_skip and stop")
    flags = parser.parse_args()
    try:
        config = load(flags.config)
        os.environ.setdefault("OMP_NUM_THREADS", str(config.threads()))
        if flags.layers:
            draft = skipping_draft(config)
            exits = [exit_setting(draft, layers, k) for layers in flags.layers for k in (1, 2)]
            show(scores(config, draft, exits, flags.tokens))
        else:
            drafts = flags.drafts or list(dict.fromkeys([*config.studied(), *config.dynamic()]))
            print(yaml.safe_dump({"calibration": calibrate(config, flags.tokens, drafts)}, sort_keys=False), end="")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
