"""Named values of the sections on trees, verification rules and the ablation: rows joined with what their rounds cost.

As in `values`, a choice of wording is a key, and it follows an interval wherever there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workflow.study.named import ReportError, Values
from workflow.study.values_rows import foremost, plain_dict, unique, verdict_counts, verdict_of

FORM = ("draft", "policy", "k", "threshold", "temperature", "seed", "shape", "nodes", "verifier")
CHAIN = "chain"

Tables = Mapping[str, list[Values]]


def tree_sections(tables: Tables) -> dict:
    """Everything that the three sections name."""
    costs = {key(row): row for row in tables["round_costs"]}
    return {
        "trees": tree_values(tables["trees"], costs, tables["confidence"]),
        "verification": verification_values(tables["verification"], costs),
        "lossy": lossy_values(tables["lossy"]),
        "ablation": ablation_values(tables["ablation"], costs),
        "example": example_values(tables["example_tree"]),
        "distribution": distribution_values(tables.get("distribution", [])),
    }


def key(row: Mapping) -> tuple:
    return tuple(row.get(name) for name in FORM)


def costed(row: Values, costs: Mapping[tuple, Values]) -> dict:
    """The row with the price of its rounds in baseline steps, and what its draft expected."""
    if key(row) not in costs:
        name = f"{row['draft']} {row['shape']} {row['policy']} K={row['k']}"
        raise ReportError(f"table 'round_costs' has no row for {name}")
    cost = costs[key(row)]
    out = plain_dict(row) | {name: cost.get(name) for name in cost if name not in FORM}
    if cost.has("ar_step_ms"):
        for phase in ("draft", "target", "other"):
            out[f"{phase}_cost"] = cost[f"{phase}_ms_per_round"] / cost["ar_step_ms"]
        out["round_cost"] = out["draft_cost"] + out["target_cost"] + out["other_cost"]
    return out


def drafted(rows: Sequence[Values], costs: Mapping[tuple, Values], table: str) -> list[dict]:
    """The rows of drafts at the lowest temperature and its first seed."""
    own = [row for row in rows if row["policy"] != "ar"]
    if not own:
        raise ReportError(f"table {table!r} has no row of a draft")
    temperature = min(row["temperature"] for row in own)
    own = [row for row in own if row["temperature"] == temperature]
    seed = min(row["seed"] for row in own)
    return [costed(row, costs) for row in own if row["seed"] == seed]


# --- trees -----------------------------------------------------------------------------------


def tree_values(rows: list[Values], costs: Mapping[tuple, Values], bins: list[Values]) -> dict:
    """Contenders by budget; at the budget in the middle, the chain beside the foremost tree."""
    own = drafted(rows, costs, "trees")
    budgets = sorted({row["nodes"] for row in own})
    budget = budgets[len(budgets) // 2]
    here = [row for row in own if row["nodes"] == budget]
    chains, others = ([row for row in here if (row["shape"] == CHAIN) == wanted] for wanted in (True, False))
    chain = chains[0] if chains else None
    return {
        "rows": own,
        "draft": own[0]["draft"],
        "budgets": budgets,
        "budget": budget,
        "counts": verdict_counts(own),
        "best": foremost(own),
        "chain": chain,
        "tree": foremost(others) if others else None,
        "against_chain": against(foremost(others), chain) if chain and others else "unknown",
        "longest": max(here, key=lambda row: row["acceptance_length"]),
        "belief": belief(bins),
        "deepest": max(row["k"] for row in own),
    }


def against(tree: Mapping, chain: Mapping) -> str:
    """Why a tree's rounds are better or worse than the chain's of as many nodes: more tokens, a lower price, both."""
    more = tree["tokens_per_round"] > chain["tokens_per_round"]
    cheaper = tree.get("round_cost") is not None and tree["round_cost"] < chain["round_cost"]
    return ("both" if cheaper else "tokens") if more else "price" if cheaper else "neither"


def belief(bins: Sequence[Values]) -> dict | None:
    """All nodes of all trees: the mean confidence, and the share accepted."""
    guesses = sum(row["guesses"] for row in bins)
    if not guesses:
        return None
    mean = sum(row["mean_confidence"] * row["guesses"] for row in bins) / guesses
    share = sum(row["kept"] for row in bins) / guesses
    ratio = mean / share if share else float("inf")
    which = "over" if ratio > 1.1 else "under" if ratio < 0.9 else "meets"
    return {"guesses": guesses, "confidence": mean, "accepted": share, "which": which}


def example_values(rows: list[Values]) -> dict | None:
    """The tree that is drawn: how many nodes, how many of them accepted."""
    if not rows:
        return None
    nodes = rows[:-1]  # the last is the target's own token
    first = plain_dict(rows[0])
    return first | {"size": len(nodes), "kept": sum(bool(row.get("accepted")) for row in nodes)}


# --- verification ----------------------------------------------------------------------------


def verification_values(rows: list[Values], costs: Mapping[tuple, Values]) -> dict:
    """By temperature: exact rules and lossy ones apart, each shape's rules beside its first."""
    own = [costed(row, costs) for row in rows if row["policy"] != "ar"]
    if not own:
        raise ReportError("table 'verification' has no row of a draft")
    temperatures = sorted({row["temperature"] for row in own})
    hottest = [row for row in own if row["temperature"] == temperatures[-1]]
    hottest = [row for row in hottest if row["seed"] == min(row["seed"] for row in hottest)]
    exact = [row for row in hottest if row["lossless"]]
    plain = next((row for row in exact if row["verifier"] == "rejection"), exact[0])
    shapes = []
    for shape in unique([row["shape"] for row in exact]):
        of_shape = [row for row in exact if row["shape"] == shape]
        longest = max(of_shape, key=lambda row: row["tokens_per_round"])
        shortest = min(of_shape, key=lambda row: row["tokens_per_round"])
        shapes.append({"name": shape, "rows": of_shape, "longest": longest, "shortest": shortest})
    return {
        "rows": own,
        "temperatures": temperatures,
        "temperature": temperatures[-1],
        "draft": own[0]["draft"],
        "plain": plain,
        "shapes": shapes,
        "best": foremost(exact),
        "longest": max(exact, key=lambda row: row["tokens_per_round"]),
        "dearest": max(exact, key=lambda row: row.get("other_cost") or 0.0),
        "counts": verdict_counts(exact),
    }


def lossy_values(rows: list[Values]) -> list[dict]:
    """Each lossy rule, with what its intervals allow to say of the text and of the speed."""
    return [
        plain_dict(row)
        | {
            "text": sign(row.get("perplexity_ratio_low"), row.get("perplexity_ratio_high")),
            "gain_verdict": verdict_of(row.get("gain_low"), row.get("gain_high")),
        }
        for row in rows
    ]


def sign(low: float | None, high: float | None) -> str:
    """Where the interval of a ratio lies: `above` 1, `below`, or `open`."""
    if low is None or high is None:
        return "open"
    return "above" if low > 1 else "below" if high < 1 else "open"


def distribution_values(rows: list[Values]) -> dict | None:
    """The test of two samples, where it was asked for."""
    if not rows:
        return None
    tested = [plain_dict(row) for row in rows if row.has("p_holm")]
    return {
        "rows": [plain_dict(row) for row in rows],
        "first": plain_dict(rows[0]),
        "differ": [row for row in tested if row["p_holm"] < 0.05],
        "least_power": min((row["power"] for row in tested), default=None),
        "least_p": min((row["p_holm"] for row in tested), default=None),
    }


# --- ablation --------------------------------------------------------------------------------


def ablation_values(rows: list[Values], costs: Mapping[tuple, Values]) -> dict:
    """The arms at the lowest temperature, each with the verdict of its gain."""
    arms = {}
    for row in drafted(rows, costs, "ablation"):
        arms[row["improvement"]] = row | {"gain_verdict": verdict_of(row.get("gain_low"), row.get("gain_high"))}
    for name in ("none", "shape", "depth", "both"):
        if name not in arms:
            raise ReportError(f"table 'ablation' has no row of the improvement {name!r}")
    product = arms["shape"]["gain"] * arms["depth"]["gain"]
    ratio = arms["both"]["gain"] / product
    beside = next((row for name, row in arms.items() if name not in ("none", "shape", "depth", "both", "ddd")), None)
    tested = [arms[name] for name in ("shape", "depth", "both")]
    return {
        "rows": list(arms.values()),
        "draft": arms["none"]["draft"],
        **{name: arms[name] for name in ("none", "shape", "depth", "both")},
        "beside": beside,
        "ddd": arms.get("ddd"),
        "product": product,
        "together": "more" if ratio > 1.02 else "less" if ratio < 0.98 else "alike",
        "best": foremost(tested, "gain", "gain_verdict"),
        "counts": verdict_counts([{"verdict": row["gain_verdict"]} for row in tested]),
    }
