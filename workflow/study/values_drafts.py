"""Named values about drafts: how they compare at equal settings, and how the trained ones came to be.

As elsewhere no words are made here: what a comparison shows is a key that the templates turn into a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workflow.study.cells import OWN_KIND, PROJECT
from workflow.study.named import Values

ALL = "all"
USUAL_DEPTH = 4
SHOWN = 4
"""Positions whose acceptance the report's table shows."""
TRAINED_AHEAD, BESIDE = "eagle3", "eagle1"
"""Two heads that learned from the same text by two methods; a comparison of methods speaks of these."""


def draft_values(rows: list[Values], temperature: float, training: Mapping) -> dict:
    """All drafts at the depth that all of them were decoded at."""
    headline = [row for row in rows if row["temperature"] == temperature and row["policy"] == "fixed"]
    depth = common_depth(headline)
    order = list(dict.fromkeys(row["draft"] for row in headline))
    whole = [row for row in headline if row["category"] == ALL]
    whole.sort(key=lambda row: (order.index(row["draft"]), row["prompt_set"] != PROJECT))
    level = [row for row in whole if row["k"] == depth]
    project = [row for row in level if row["prompt_set"] == PROJECT]
    ranked = sorted(project, key=lambda row: -row["decode_speedup"])
    return {
        "depth": depth,
        "rows": whole,
        "ranked": ranked,
        "best": ranked[0],
        "sure": ranked[0]["verdict"] == "faster",
        "most_accepted": max(project, key=lambda row: row["tokens_per_round"]),
        "priced": sorted((row for row in project if row.has("cost_ratio")), key=lambda row: row["cost_ratio"]),
        "own_kind": own_kind(level),
        "categories": categories(headline, depth),
        "methods": methods(project, training),
        "trained": trained_against_small(project),
    }


def common_depth(rows: Sequence[Mapping]) -> int:
    """The usual depth where every draft was decoded at it, else the deepest that every draft shares."""
    depths: dict[str, set[int]] = {}
    for row in rows:
        if row["prompt_set"] == PROJECT:
            depths.setdefault(row["draft"], set()).add(row["k"])
    shared = set.intersection(*depths.values())
    return USUAL_DEPTH if USUAL_DEPTH in shared else max(shared)


def own_kind(rows: list[Values]) -> list[dict]:
    """Each draft's tokens per round on the project's prompts and on text of the kind it may have been trained on."""
    by_set = {name: {row["draft"]: row for row in rows if row["prompt_set"] == name} for name in (PROJECT, OWN_KIND)}
    found = []
    for draft, there in by_set[OWN_KIND].items():
        here = by_set[PROJECT][draft]
        found.append(
            {
                "draft": draft,
                "project": here["tokens_per_round"],
                "own": there["tokens_per_round"],
                "ratio": there["tokens_per_round"] / here["tokens_per_round"],
                "trained": there.has("train_tokens"),
            }
        )
    return found


def categories(rows: list[Values], depth: int) -> dict:
    """Tokens per round of every draft by category, on the project's prompts."""
    own = [row for row in rows if row["prompt_set"] == PROJECT and row["k"] == depth and row["category"] != ALL]
    names = list(dict.fromkeys(row["category"] for row in own))
    drafts: dict[str, dict] = {}
    for row in own:
        drafts.setdefault(row["draft"], {})[row["category"]] = row.get("tokens_per_round")
    table = [{"draft": draft, "values": [values.get(name) for name in names]} for draft, values in drafts.items()]
    return {"names": names, "rows": table}


def methods(rows: list[Values], training: Mapping) -> dict | None:
    """EAGLE-3 beside EAGLE-1: acceptance by position, and whether both had the same training."""
    by_name = {row["draft"]: row for row in rows}
    if TRAINED_AHEAD not in by_name or BESIDE not in by_name:
        return None
    new, old = by_name[TRAINED_AHEAD], by_name[BESIDE]
    places = [
        {"position": place, "new": new[name], "old": old[name]}
        for place, name in ((place, f"acceptance_at_{place}") for place in range(1, new["k"] + 1))
        if new.has(name) and old.has(name)
    ]
    later = [place for place in places if place["position"] >= 3]
    heads = {head["draft"]: head for head in training["heads"]}
    both = [heads[name] for name in (TRAINED_AHEAD, BESIDE) if name in heads]
    passes = [head["token_passes"] + head["before_passes"] for head in both]
    return {
        "new": new,
        "old": old,
        "places": places,
        "later": "unknown" if not later else "above" if all(p["new"] > p["old"] for p in later) else "not_above",
        "passes": passes if len(passes) == 2 else None,
        "equal_passes": len(passes) == 2 and abs(passes[0] - passes[1]) <= 0.05 * passes[1],
        "compared_small": any(
            {TRAINED_AHEAD, BESIDE} <= {row["method"] for row in group["rows"]} for group in training["ablations"]
        ),
    }


def trained_against_small(rows: list[Values]) -> dict | None:
    """The head trained for its target beside the small language model, where there are both."""
    by_name = {row["draft"]: row for row in rows}
    if TRAINED_AHEAD not in by_name or "small" not in by_name:
        return None
    head, small = by_name[TRAINED_AHEAD], by_name["small"]
    intervals = [(row.get("decode_speedup_low"), row.get("decode_speedup_high")) for row in (head, small)]
    known = all(end is not None for interval in intervals for end in interval)
    faster = known and intervals[0][0] > intervals[1][1]
    slower = known and intervals[0][1] < intervals[1][0]
    return {"head": head, "small": small, "verdict": "faster" if faster else "slower" if slower else "open"}


# --- training ------------------------------------------------------------------------------------


def training_values(tables: Mapping[str, list[Values]], config: Mapping, metadata: Mapping) -> dict:
    """Trained drafts with their text, settings and cost, heads and distilled models apart; what they share with each
    other and with the study's target; small trainings beside them."""
    drafts = tables["training"]
    heads, distilled = ([row for row in drafts if (row["method"] == "distill") == wanted] for wanted in (False, True))
    dtype, target = (config.get("run") or {}).get("dtype"), (metadata.get("model") or {}).get("target")
    shared = (
        "answer_tokens",
        "conversations",
        "prompt",
        "batch",
        "warmup",
        "seed",
        "optimiser",
        "peak_rate",
        "token_passes",
    )
    same = {name: len({head.get(name) for head in heads}) == 1 for name in shared}
    return {
        "drafts": drafts,
        "heads": heads,
        "distilled": distilled,
        "text": text_values(drafts[0]) if drafts else None,
        "with_requests": [draft["draft"] for draft in drafts if draft["learn"] == "everything"],
        "other_dtype": [draft["draft"] for draft in drafts if draft.get("dtype") != dtype],
        "other_target": [draft["draft"] for draft in drafts if draft["target_id"] != target],
        "same_text": len({(draft["answer_tokens"], draft["conversations"]) for draft in drafts}) == 1,
        "different": [name for name in shared[2:] if not same[name]],
        "curves": [curve_values(draft, tables["training_curves"]) for draft in drafts],
        "sizes": sizes(tables["training_curves"]),
        "ablations": ablation_groups(tables["training_ablations"]),
        "own_target": next(iter(tables["training_layerskip"]), None),
    }


def text_values(head: Values) -> dict:
    """What was written, and what of it was not kept, the most frequent reason first."""
    counts = {name.removeprefix("dropped_"): head[name] for name in head if name.startswith("dropped_")}
    reasons = [{"reason": name, "count": count} for name, count in counts.items() if count]
    reasons.sort(key=lambda item: -item["count"])
    kept = head["written"] - head["dropped"]
    return {"written": head["written"], "dropped": head["dropped"], "reasons": reasons, "kept": kept}


def curve_values(head: Values, rows: list[Values]) -> dict:
    """Where a training began and ended on held-out text, and whether it had stopped learning."""
    own = sorted((row for row in rows if row["draft"] == head["draft"]), key=lambda row: row["passes"])
    best = max(own, key=lambda row: row["tokens_per_round"])
    early = [row for row in own if row["passes"] <= own[-1]["passes"] / 2]
    half = early[-1] if early else own[0]
    return {
        "draft": head["draft"],
        "first": own[0],
        "best": best,
        "second_half": best["tokens_per_round"] - half["tokens_per_round"],
        "points": len(own),
    }


def sizes(rows: list[Values]) -> list[dict]:
    """Small models of other sizes, each beside the one whose weights are kept, at as many passes as it had itself."""
    found = []
    for name in dict.fromkeys(row["draft"] for row in rows if not row["shipped"]):
        other = doubling([row for row in rows if row["draft"] == name])
        models = dict.fromkeys(row["draft"] for row in rows if row["shipped"] and row.has("layers"))
        for draft in models:
            most = [row for row in rows if row["draft"] == draft and row["passes"] <= 1.05 * other["last"]["passes"]]
            if most:
                found.append({"other": other, "kept": doubling(most)})
    return found


def doubling(rows: list[Values]) -> dict:
    """The end of a curve, and what the second half of its passes brought."""
    ordered = sorted(rows, key=lambda row: row["passes"])
    last = ordered[-1]
    half = min(ordered, key=lambda row: abs(2 * row["passes"] - last["passes"]))
    return {"last": last, "brought": last["tokens_per_round"] - half["tokens_per_round"]}


def ablation_groups(rows: list[Values]) -> list[dict]:
    """Small trainings by the base they are compared with, the shortest first."""
    groups = [
        _ablation_group([row for row in rows if row["base"] == base])
        for base in dict.fromkeys(row["base"] for row in rows)
    ]
    return sorted(groups, key=lambda group: group["base"]["token_passes"])


def _ablation_group(rows: list[Values]) -> dict:
    base = rows[0]
    others = [{"row": row, "difference": row["tokens_per_round"] - base["tokens_per_round"]} for row in rows[1:]]
    worst = min(others, key=lambda other: other["difference"], default=None)
    best = max(others, key=lambda other: other["difference"], default=None)
    return {"base": base, "rows": rows, "others": others, "best": best, "worst": worst}
