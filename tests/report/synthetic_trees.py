"""Tables of trees, verification rules and ablation that go with `synthetic_results`, from the same small cost model."""

from __future__ import annotations

import json

STEP_MS = 18.0
FORM = {"shape": "chain", "nodes": 8, "verifier": "greedy"}

# shape, policy: K, nodes drafted a round, accepted tokens a round, confidence summed, cost of drafting, by variant
CONTENDERS = {
    "slower": [
        ("chain", "fixed", 8, 8.0, 1.1, 1.9, 4.4),
        ("static", "fixed", 4, 8.0, 1.2, 1.6, 2.4),
        ("eagle2", "fixed", 4, 8.0, 1.25, 2.0, 2.5),
        ("eagle2", "ddd", 8, 7.5, 1.2, 1.9, 1.7),
        ("opt_tree", "fixed", 4, 8.0, 1.3, 2.1, 2.5),
    ],
    "faster": [
        ("chain", "fixed", 8, 8.0, 2.1, 2.0, 1.44),
        ("static", "fixed", 4, 8.0, 2.2, 2.1, 0.8),
        ("eagle2", "fixed", 4, 8.0, 2.4, 2.3, 0.8),
        ("eagle2", "ddd", 8, 7.5, 2.5, 2.3, 0.9),
        ("opt_tree", "fixed", 4, 8.0, 2.5, 2.4, 0.8),
    ],
}

RULES = [
    ("chain", 4, "rejection", True, 1.9, 0.06),
    ("chain", 4, "sample_and_match", True, 1.6, 0.04),
    ("chain", 4, "block", True, 2.0, 0.08),
    ("chain", 4, "typical", False, 2.3, 0.07),
    ("sampled", 8, "recursive", True, 2.1, 0.12),
    ("sampled", 8, "traversal", True, 2.15, 0.15),
    ("sampled_with", 8, "recursive", True, 2.05, 0.12),
    ("sampled_with", 8, "spectr", True, 2.0, 0.4),
]


def tree_tables(row_of, baseline: dict, variant: str) -> dict[str, list[dict]]:
    """Every table; `row_of(draft, policy, k, tau, costs)` gives a decode row and its times."""
    draft = {"slower": "layer_skip", "faster": "small"}[variant]
    none = baseline | FORM | {"nodes": 0, "lossless": True}
    tables: dict[str, list[dict]] = {"trees": [none], "round_costs": [], "verification": [], "ablation": []}

    def add(table, shape, policy, k, nodes, drafted, accepted, expected, drafting, other=0.05, **rest):
        costs = (drafting, 1 + 0.02 * drafted, other)
        row = row_of(draft, policy, k, 1 + accepted, costs, drafted) | {
            "shape": shape,
            "nodes": nodes,
            "lossless": True,
        }
        row |= {"verifier": "greedy", "acceptance_rate": accepted / drafted if shape == "chain" else None} | rest
        tables[table].append(row)
        if key(row) not in map(key, tables["round_costs"]):
            tables["round_costs"].append(cost_row(row, drafted, expected, accepted, costs))
        return row

    for shape, policy, k, drafted, accepted, expected, drafting in CONTENDERS[variant]:
        add("trees", shape, policy, k, 8, drafted, accepted, expected, drafting)
    warm = {"temperature": 1.0}
    tables["verification"].append(none | warm | {"verifier": "rejection"})
    for shape, nodes, verifier, lossless, tau, other in RULES:
        rest = warm | {"verifier": verifier, "lossless": lossless}
        add("verification", shape, "fixed", 4, nodes, float(nodes), tau - 1, tau - 0.8, 1.0, other, **rest)
    tables["ablation"] = ablation_rows(add, none, variant)
    tables["confidence"] = confidence_rows(tables["trees"][1:], variant)
    tables["example_tree"] = example_rows(next(row for row in tables["trees"] if row["shape"] == "opt_tree"))
    tables["lossy"] = [lossy_row(tables["verification"], variant)]
    return tables


def key(row: dict) -> tuple:
    return tuple(row[name] for name in ("draft", "policy", "k", "temperature", "shape", "nodes", "verifier"))


def cell(row: dict) -> dict:
    names = ("pair", "draft", "policy", "k", "threshold", "temperature", "seed", "shape", "nodes", "verifier")
    return {name: row[name] for name in names}


def cost_row(row: dict, drafted: float, expected: float, accepted: float, costs: tuple) -> dict:
    shares = [0.95 * cost / sum(costs) for cost in costs]
    out = cell(row) | {"rounds": row["rounds"], "drafted_per_round": drafted}
    out |= {"expected_length": expected, "realised_length": accepted}
    out |= dict(zip(("draft_share", "target_share", "other_share"), shares, strict=True)) | {"prefill_share": 0.05}
    times = [cost * STEP_MS for cost in costs]
    names = ("draft_ms_per_round", "target_ms_per_round", "other_ms_per_round")
    return out | dict(zip(names, times, strict=True)) | {"ar_step_ms": STEP_MS}


def ablation_rows(add, none: dict, variant: str) -> list[dict]:
    empty = {"gain": None, "gain_low": None, "gain_high": None}
    rows = [none | {"improvement": None, "over": None} | empty]
    plain = add("ablation", "chain", "fixed", 4, 4, 4.0, 1.0, 1.5, 2.2 if variant == "slower" else 0.72)
    drafting = 2.5 if variant == "slower" else 0.8
    arms = {
        "none": plain,
        "shape": add("ablation", "opt_tree", "fixed", 4, 8, 8.0, 1.3, 2.1, drafting),
        "depth": add("ablation", "chain", "cost", 8, 8, 3.0, 1.05, 1.4, 0.6 * drafting),
        "both": add("ablation", "opt_tree", "cost", 8, 8, 8.0, 1.35, 2.0, 0.7 * drafting),
        "eagle2": add("ablation", "eagle2", "fixed", 4, 8, 8.0, 1.25, 2.0, drafting),
        "ddd": add("ablation", "eagle2", "ddd", 8, 8, 7.5, 1.2, 1.9, 0.7 * drafting),
    }
    for name, row in arms.items():
        over = "eagle2" if name == "ddd" else "none"
        gain = row["speedup"] / arms[over]["speedup"]
        gained = {"gain": gain, "gain_low": gain * 0.94, "gain_high": gain * 1.06}
        rows.append(row | {"improvement": name, "over": over} | gained)
    return rows


def confidence_rows(trees: list[dict], variant: str) -> list[dict]:
    share = 0.6 if variant == "slower" else 1.0
    rows = []
    for row in trees:
        for place in range(10):
            mean, guesses = (place + 0.5) / 10, 40 + 10 * (9 - place)
            values = {"low": place / 10, "high": (place + 1) / 10, "guesses": guesses, "mean_confidence": mean}
            rows.append(cell(row) | values | {"kept": round(guesses * mean * share), "share_kept": mean * share})
    return rows


def example_rows(row: dict) -> list[dict]:
    nodes = [(None, " the", 0.6, True), (None, " a", 0.3, False), (0, " cat", 0.4, True), (2, " sat", None, False)]
    shared = cell(row) | {"prompt_id": "chat-1", "round": 3}
    return [
        shared | {"node": node, "parent": parent, "text": json.dumps(text), "confidence": chance, "accepted": kept}
        for node, (parent, text, chance, kept) in enumerate(nodes)
    ]


def lossy_row(rows: list[dict], variant: str) -> dict:
    lossy = next(row for row in rows if row["verifier"] == "typical")
    exact = next(row for row in rows if row["verifier"] == "rejection" and row["policy"] != "ar")
    ratio, gain = (0.8, 1.2) if variant == "slower" else (1.0, 1.02)
    return cell(lossy) | {
        "exact_verifier": exact["verifier"],
        "prompts": lossy["prompts"],
        "tokens": lossy["tokens"],
        "perplexity": 4.0 * ratio,
        "exact_perplexity": 4.1,
        "ar_perplexity": 4.0,
        "perplexity_ratio": ratio,
        "perplexity_ratio_low": ratio * 0.9,
        "perplexity_ratio_high": ratio * 1.1,
        "differing_share": 0.172,
        "gain": gain,
        "gain_low": gain * 0.95,
        "gain_high": gain * 1.05,
    }


def distribution_rows(verification: list[dict], p_value: float = 0.4) -> list[dict]:
    shared = {"prompt_id": "chat-1", "continuations": 2000, "tokens": 2, "groups": 40, "statistic": 38.0, "shift": 0.1}
    exact = [row for row in verification if row["lossless"] and row["policy"] != "ar"]
    return [cell(row) | shared | {"p_value": p_value, "p_holm": p_value, "power": 0.97} for row in exact]
