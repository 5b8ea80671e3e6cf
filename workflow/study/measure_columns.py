"""The columns of the tables that are measured directly rather than made from cells; see `columns.py` for the others."""

from __future__ import annotations

import pyarrow as pa

_NAME, _INT, _REAL, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()

TARGET_ROLE, DRAFT_ROLE = "target", "draft"
"""Values of the column `role`."""

MISSING = "missing"
"""How the note of a row begins that says why there are no numbers."""

TIMING_ONLY = "timing only: random weights"

ALWAYS = ("cost_model", "break_even", "predicted", "operators", "memory", "roofline")
"""Tables of every study that are not made from cells alone."""

ON_REQUEST = ("peers", "long_context")
"""Those that a study holds where the configuration asks for them."""

CHAIN = {
    "pair": _NAME,
    "draft": _NAME,
    "policy": _NAME,
    "k": _INT,
    "threshold": _REAL,
    "temperature": _REAL,
    "seed": _INT,
    "shape": _NAME,
    "nodes": _INT,
    "verifier": _NAME,
    "prompt_set": _NAME,
}

MEASURED_COLUMNS: dict[str, dict[str, pa.DataType]] = {
    "cost_model": {
        "model": _NAME,
        "role": _NAME,
        "width": _INT,
        "context": _INT,
        "ms": _REAL,
        "ms_low": _REAL,
        "ms_high": _REAL,
        "cost_ratio": _REAL,
        "note": _NAME,
    },
    "break_even": {
        "target": _NAME,
        "draft": _NAME,
        "k": _INT,
        "context": _INT,
        "cost_ratio": _REAL,
        "verify_ratio": _REAL,
        "price": _REAL,
        "break_even_acceptance": _REAL,
        "note": _NAME,
    },
    "predicted": {
        **CHAIN,
        "acceptance_rate": _REAL,
        "alpha": _REAL,
        "tokens_per_round": _REAL,
        "cost_ratio": _REAL,
        "verify_ratio": _REAL,
        "price": _REAL,
        "predicted_tokens_per_round": _REAL,
        "predicted_speedup": _REAL,
        "predicted_independent": _REAL,
        "decode_speedup": _REAL,
        "decode_speedup_low": _REAL,
        "decode_speedup_high": _REAL,
        "error": _REAL,
        "break_even_acceptance": _REAL,
        "predicted_best_k": _INT,
        "note": _NAME,
    },
    "operators": {
        "arm": _NAME,
        "draft": _NAME,
        "k": _INT,
        "phase": _NAME,
        "group": _NAME,
        "operator": _NAME,
        "calls": _INT,
        "ms": _REAL,
        "share": _REAL,
    },
    "memory": {"arm": _NAME, "draft": _NAME, "part": _NAME, "bytes": _INT},
    "roofline": {
        "point": _NAME,
        "width": _INT,
        "context": _INT,
        "ms": _REAL,
        "ms_low": _REAL,
        "ms_high": _REAL,
        "bytes": _INT,
        "operations": _INT,
        "intensity": _REAL,
        "gops_per_s": _REAL,
        "gbytes_per_s": _REAL,
        "share_of_limit": _REAL,
    },
    "peers": {
        "arm": _NAME,
        "mode": _NAME,
        "draft": _NAME,
        "precision": _NAME,
        "prompts": _INT,
        "tokens": _INT,
        "tokens_per_s": _REAL,
        "tokens_per_s_low": _REAL,
        "tokens_per_s_high": _REAL,
        "ratio_to_specdec_ar": _REAL,
        "bandwidth_utilisation": _REAL,
        "same_output": _INT,
        "note": _NAME,
    },
    "long_context": {
        "context": _INT,
        "generated": _INT,
        "ms": _REAL,
        "ms_low": _REAL,
        "ms_high": _REAL,
        "cache_bytes": _INT,
        "bytes": _INT,
        "bytes_ratio": _REAL,
        "time_ratio": _REAL,
        "ns_per_cached_kb": _REAL,
        "grows_no_faster": _FLAG,
    },
}
