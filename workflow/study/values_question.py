"""Named values of the course's question: is a draft trained for its target better than a small model of its family?

Both are rows of the same table, at the same depth, on the same prompts.  What each would need to beat the other comes
from the cost model: the acceptance at which its own price of a round, times the other's speed, is earned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from specdec.measure.cost_model import break_even
from workflow.study.cells import PROJECT
from workflow.study.named import Values
from workflow.study.values_drafts import ALL, common_depth, trained_against_small

HEAD, SMALL = "eagle3", "small"
COMBINED, LOOKUP = "eagle3_lookup", "ngram"
VARIANTS = ("eagle3_whole", "small_restricted")
"""The same two with more, or fewer, tokens to guess among."""
ALIKE = 0.05
"""Lengths of two trainings that differ by less than this share count as equal."""


def question_values(
    rows: list[Values],
    temperature: float,
    training: Mapping,
    measured: Mapping[str, list[dict]],
    calibration: Mapping[str, Mapping],
) -> dict:
    """What the table of drafts, the records of trainings and the cost model say of the two; `state` says whether both
    are there."""
    fixed = [row for row in rows if row["temperature"] == temperature and row["policy"] == "fixed"]
    depth = common_depth(fixed)
    level = [row for row in fixed if row["k"] == depth and row["prompt_set"] == PROJECT]
    whole = {row["draft"]: row for row in level if row["category"] == ALL}
    there = tuple(name in whole for name in (HEAD, SMALL))
    state = {(True, True): "both", (True, False): "no_small", (False, True): "no_head"}.get(there, "neither")
    ranked = sorted(whole.values(), key=lambda row: -row["decode_speedup"])
    found = {
        "state": state,
        "depth": depth,
        "ranked": ranked,
        "chosen": chosen_depths(fixed, calibration),
        "other_pair": other_pair(depth),
    }
    if state != "both":
        return found
    pair = trained_against_small(list(whole.values()))
    head, small = pair["head"], pair["small"]
    ahead, behind = (head, small) if head["decode_speedup"] >= small["decode_speedup"] else (small, head)
    return found | {
        "verdict": pair["verdict"],
        "head": head,
        "small": small,
        "ahead": ahead,
        "behind": behind,
        "variants": [whole[name] for name in VARIANTS if name in whole],
        **combined(level),
        "balance": balance(head, small),
        "categories": by_category(level),
        "needed": needed(ahead, behind, measured["break_even"], measured["predicted"]),
        "training": trainings(training),
    }


def chosen_depths(fixed: Sequence[Values], calibration: Mapping[str, Mapping]) -> list[Values]:
    """Each draft on the project's prompts at the depth that the calibration prompts chose for it, the fastest first."""
    depths = {draft: known.get("best_k") for draft, known in calibration.items()}
    whole = [row for row in fixed if row["prompt_set"] == PROJECT and row["category"] == ALL]
    own = [row for row in whole if row["k"] == depths.get(row["draft"])]
    return sorted(own, key=lambda row: -row["decode_speedup"])


def combined(level: Sequence[Values]) -> dict:
    """`combined`, where it is there: the head behind prompt lookup beside the head and the lookup alone, and where its
    yield grows most."""
    by_draft = {
        draft: {row["category"]: row for row in level if row["draft"] == draft} for draft in (COMBINED, HEAD, LOOKUP)
    }
    both, head = by_draft[COMBINED], by_draft[HEAD]
    categories = [name for name in both if name in head and name != ALL]
    if ALL not in both or ALL not in head or not categories:
        return {}
    growth = {name: both[name]["tokens_per_round"] / head[name]["tokens_per_round"] for name in categories}
    most = max(categories, key=growth.__getitem__)
    found = {"both": both[ALL], "head": head[ALL], "category": most, "before": head[most], "after": both[most]}
    alone = by_draft[LOOKUP].get(ALL)
    return {"combined": found | ({} if alone is None else {"lookup": alone})}


def balance(head: Values, small: Values) -> str:
    """Who yields more for less, `head` or `small`; else which of them pays for its yield with its price."""
    more = head["tokens_per_round"] > small["tokens_per_round"]
    if not (head.has("cost_ratio") and small.has("cost_ratio")):
        return "unpriced"
    cheaper = head["cost_ratio"] < small["cost_ratio"]
    if more == cheaper:
        return "head" if more else "small"
    return "small_pays_for_yield" if cheaper else "head_pays_for_yield"


def by_category(level: list[Values]) -> dict:
    """Each category with both drafts' rows and who is ahead there, as far as intervals say."""
    names = list(dict.fromkeys(row["category"] for row in level if row["category"] != ALL))
    found = []
    for name in names:
        pair = trained_against_small([row for row in level if row["category"] == name])
        if pair is not None:
            found.append(pair | {"name": name})
    won = {key: [row["name"] for row in found if row["verdict"] == key] for key in ("faster", "slower", "open")}
    return {"rows": found, "head": won["faster"], "small": won["slower"], "open": won["open"]}


def needed(ahead: Values, behind: Values, prices: Sequence[dict], predicted: Sequence[dict]) -> dict:
    """The independent acceptance at which the slower draft would reach the faster one's decode speed; None where its
    price is unknown (`known`) or no acceptance is enough."""
    k = behind["k"]
    own = [row for row in prices if row["draft"] == behind["draft"] and row["k"] == k and row["price"] is not None]
    if not own:
        return {"known": False, "acceptance": None, "found": None}
    price = min(own, key=lambda row: row["context"])["price"]
    usual = {"draft": behind["draft"], "policy": "fixed", "k": k, "shape": "chain", "prompt_set": PROJECT}
    alike = [row for row in predicted if all(row[name] == value for name, value in usual.items())]
    alike.sort(key=lambda row: (row["temperature"], row["seed"]))
    return {
        "known": True,
        "price": price,
        "acceptance": break_even(price * ahead["decode_speedup"], k),
        "found": next((row["alpha"] for row in alike if row["alpha"] is not None), None),
    }


def trainings(training: Mapping) -> dict | None:
    """Both trainings, and whether they had the same text and length; None where one has no record."""
    by_name = {row["draft"]: row for row in training["drafts"]}
    if HEAD not in by_name or SMALL not in by_name:
        return None
    head, small = by_name[HEAD], by_name[SMALL]
    passes = [row["token_passes"] + row["before_passes"] for row in (head, small)]
    return {
        "head": head,
        "small": small,
        "passes": passes,
        "hours": [row["hours"] + row["before_hours"] for row in (head, small)],
        "same_text": all(head[name] == small[name] for name in ("answer_tokens", "conversations")),
        "same_passes": abs(passes[0] - passes[1]) <= ALIKE * max(passes),
        "longer": "head" if passes[0] > passes[1] else "small",
        "better": "head" if head["tokens_per_round"] > small["tokens_per_round"] else "small",
    }


def other_pair(k: int) -> dict:
    """The larger pair that the project ships: what a draft step reads of weights over what a target pass reads, and the
    acceptance at which K such steps are paid where reading is the price and scoring is free."""
    from specdec.models.loading import expected_shapes
    from workflow.study.timing_only import DRAFT, TARGET, shape_of

    sizes = [sum(map(math.prod, expected_shapes(shape_of(name)).values())) for name in (TARGET, DRAFT)]
    ratio = sizes[1] / sizes[0]
    return {"target": TARGET, "draft": DRAFT, "ratio": ratio, "least": break_even(1 + ratio * k, k)}
