"""`env/gpu-check`: does static decoding hold on this GPU, and how near does it come to what the GPU allows?

One run answers what no processor can: whether captured rounds write the eager loop's text, what a pass costs captured
and not, and which share of the read bandwidth decoding uses.  Times come from the published shapes of Qwen3-1.7B and
Qwen3-0.6B with random weights, since a clock does not ask what weights say.  `--rehearse` runs the same code on the
CPU, uncaptured, over tiny shapes: it shows that the check works, and nothing about speed.

Exit codes: 0 every check passed, 1 one did not (or a mistake that one line names), 3 there is no CUDA device.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from specdec.decode import Generation, Request, autoregressive, speculative
from specdec.drafters import Chain, LanguageModel, Nothing
from specdec.errors import UserError
from specdec.growth import build_rule
from specdec.measure.alternate import median
from specdec.measure.bandwidth import bandwidth_of
from specdec.measure.cost_model import break_even
from specdec.measure.forward_times import tokens_of
from specdec.models.config import ModelConfig
from specdec.models.loading import expected_shapes
from specdec.models.transformer import Transformer
from specdec.sampling import GREEDY, Sampling
from specdec.static import StaticDecoder
from workflow.study import timing_only
from workflow.study.columns import write_text
from workflow.study.long_context import row_bytes

PASSED, FAILED, NO_DEVICE = 0, 1, 3
LIMIT_S = 330
"""No check begins later than this: the whole ends within six minutes."""

WARM = Sampling(temperature=1.0)
SMALL = timing_only.SHAPES[timing_only.TARGET] | {
    "vocab_size": 512,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 256,
}
"""The architecture at a size at which texts, not times, are compared."""


@dataclass(frozen=True)
class Scale:
    """How large everything is: the models that are timed, their number format, and how long."""

    target: ModelConfig
    draft: ModelConfig
    dtype: str
    device: str
    k: int = 4
    context: int = 512
    tokens: int = 64
    repeats: int = 5
    texts: int = 6


def scales() -> tuple[Scale, Scale]:
    """On a GPU, and rehearsed."""
    target, draft = (timing_only.shape_of(name) for name in (timing_only.TARGET, timing_only.DRAFT))
    small = ModelConfig.from_dict(SMALL, "rehearsal")
    rehearsed = Scale(small, replace(small, layers=1), "float32", "cpu", context=40, tokens=24, repeats=1, texts=2)
    return Scale(target, draft, "bfloat16", "cuda"), rehearsed


# -- the same text ----------------------------------------------------------------------------------


def drawn(config: ModelConfig, device: str, dtype: torch.dtype, noise: float = 0.0) -> Transformer:
    """A model whose logits differ clearly from token to token; `noise` makes its weights those of a near relative."""
    generator = torch.Generator().manual_seed(0)
    other = torch.Generator().manual_seed(1)
    weights = {}
    for name, shape in expected_shapes(config).items():
        value = torch.randn(shape, generator=generator)
        if "norm" in name:
            value = 1 + 0.2 * value
        else:
            value *= 0.4 if "embed" in name else 1.5 / shape[-1] ** 0.5
            value += noise * value.std() * torch.randn(shape, generator=other)
        weights[name] = value
    return Transformer(config, weights, dtype=dtype, device=device)


def chain(draft: Transformer, k: int) -> Chain:
    return Chain(LanguageModel(draft), build_rule("fixed", k))


def equality(scale: Scale) -> dict:
    """In float32, captured rounds write the eager loop's tokens: the baseline and chains, greedily and by rejection."""
    config = ModelConfig.from_dict(SMALL, "equality")
    target = drawn(config, scale.device, torch.float32)
    draft = drawn(config, scale.device, torch.float32, noise=0.1)
    found = {}
    for sampling, rule in ((GREEDY, "greedy"), (WARM, "rejection")):
        for k in (0, scale.k):
            make = (lambda k=k: chain(draft, k)) if k else Nothing
            decoder = StaticDecoder(target, make(), k=k, capacity=100, sampling=sampling)
            same = accepted = 0
            for text in range(scale.texts):
                prompt = tokens_of(1 + 5 * text, config.vocab_size, seed=text)
                request = Request(prompt, 60, sampling, seed=text)
                eager = speculative(target, make(), request, k=k).run()
                static = decoder.generation(request).run()
                same += static.output_ids == eager.output_ids
                accepted += sum(record.accepted for record in static.rounds)
            found[f"{rule}_k{k}"] = {"texts": scale.texts, "same": same, "accepted": accepted}
    return {"passed": all(row["same"] == row["texts"] for row in found.values()), **found}


def width(scale: Scale) -> dict:
    """In the timed number format: chains against the baseline, whose pass is one row wide or as wide as verification.

    With equal widths the same kernels run in both, so that texts should not part at near ties.
    """
    config = ModelConfig.from_dict(SMALL, "width")
    dtype = getattr(torch, scale.dtype)
    target, draft = drawn(config, scale.device, dtype), drawn(config, scale.device, dtype, noise=0.1)
    drafting = StaticDecoder(target, chain(draft, scale.k), k=scale.k, capacity=100)
    baselines = {
        rows: StaticDecoder(target, Nothing(), k=0, capacity=100, width=rows) for rows in (1, drafting.rounds.width)
    }
    same = dict.fromkeys(baselines, 0)
    for text in range(scale.texts):
        request = Request(tokens_of(9, config.vocab_size, seed=text), 60)
        expected = drafting.generation(request).run().output_ids
        for rows, baseline in baselines.items():
            same[rows] += baseline.generation(request).run().output_ids == expected
    narrow, wide = same.values()
    # what bf16 does at near ties is to be known, and is no mistake of the capture
    return {"passed": None, "texts": scale.texts, "same_as_width_1": narrow, "same_as_equal_width": wide}


# -- time -------------------------------------------------------------------------------------------


def speed(scale: Scale) -> dict:
    """Milliseconds a round of every way to decode, by turns; the share of the read bandwidth; what a draft needs."""
    target = timing_only.fill(scale.target, scale.dtype, scale.device)
    draft = timing_only.fill(scale.draft, scale.dtype, scale.device)
    capacity, k = scale.context + scale.tokens, scale.k
    begin = time.perf_counter()
    static = {
        "ar_static": StaticDecoder(target, Nothing(), k=0, capacity=capacity),
        "ar_static_padded": StaticDecoder(target, Nothing(), k=0, capacity=capacity, width=k + 1),
        "chain_static": StaticDecoder(target, chain(draft, k), k=k, capacity=capacity),
    }
    made_s = time.perf_counter() - begin
    arms: dict[str, Callable[[Request], Generation]] = {
        "ar_eager": lambda request: autoregressive(target, request),
        "chain_eager": lambda request: speculative(target, chain(draft, k), request, k=k),
        **{name: decoder.generation for name, decoder in static.items()},
    }
    rounds: dict[str, list] = {name: [] for name in arms}
    request = Request(tokens_of(scale.context, target.vocabulary), scale.tokens)
    for turn in range(scale.repeats + 1):
        for name, make in arms.items():
            made = make(request).run().rounds
            # the first text warms up; the last round of one may draft less
            rounds[name] += made[1:-1] if turn else []
    bandwidth = bandwidth_of(torch.device(scale.device), torch.get_num_threads()).bytes_per_s
    read = target.weight_bytes() + row_bytes(target) * (scale.context + scale.tokens / 2)
    captured = all(made.rounds.captured for made in static.values())
    # a CPU has nothing to capture with
    found: dict = {"passed": captured or scale.device == "cpu", "captured": captured, "made_ready_s": made_s}
    found |= {"context": scale.context, "tokens": scale.tokens, "k": k, "read_bytes_per_s": bandwidth}
    found |= {"weight_bytes": {"target": target.weight_bytes(), "draft": draft.weight_bytes()}, "read_bytes": read}
    found["ms_per_round"] = {name: timed([r.seconds for r in made]) for name, made in rounds.items()}
    for name in ("ar_eager", "ar_static", "ar_static_padded"):
        seconds = found["ms_per_round"][name]["ms"] / 1000
        found[name] = {"tokens_per_s": 1 / seconds, "bandwidth_utilisation": read / seconds / bandwidth}
    for way in ("static", "eager"):
        unit, price = (found["ms_per_round"][f"{arm}_{way}"]["ms"] for arm in ("ar", "chain"))
        parts = {
            f"{part}_ms": 1000 * median([getattr(r, f"{part}_s") for r in rounds[f"chain_{way}"]]).value
            for part in ("draft", "target", "other")
        }
        found[f"chain_{way}"] = parts | {
            "cost_ratio": parts["draft_ms"] / k / unit,
            "price": price / unit,
            "break_even_acceptance": break_even(price / unit, k),
        }
    return found


def timed(seconds: Sequence[float]) -> dict:
    found = median([1000 * value for value in seconds])
    return {"ms": found.value, "ms_low": found.low, "ms_high": found.high, "samples": len(seconds)}


# -- the whole --------------------------------------------------------------------------------------

CHECKS: dict[str, Callable[[Scale], dict]] = {"equality": equality, "width": width, "speed": speed}


def machine(scale: Scale) -> dict:
    """What it ran on; no names of hosts or people."""
    found = {"torch": torch.__version__, "cuda": torch.version.cuda, "device": scale.device, "accelerator": None}
    if scale.device == "cuda":
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        found |= {"accelerator": properties.name, "memory_gib": round(properties.total_memory / 2**30)}
        found["capability"] = list(torch.cuda.get_device_capability())
    return found


def run(scale: Scale, rehearsal: bool, limit_s: float = LIMIT_S, now: Callable[[], float] = time.monotonic) -> dict:
    """Every check in turn; one that fails stops none behind it, and none begins after `limit_s`."""
    begin, found = now(), {}
    for name, check in CHECKS.items():
        start = now()
        if start - begin > limit_s:
            found[name] = {"passed": False, "error": f"not begun: {start - begin:.0f} s had passed already"}
            continue
        print(f"gpu-check: {name}", file=sys.stderr, flush=True)
        try:
            found[name] = check(scale)
        except (UserError, RuntimeError) as error:  # PyTorch's errors on a GPU are RuntimeErrors
            found[name] = {"passed": False, "error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        found[name]["seconds"] = now() - start
    passed = all(result["passed"] is not False for result in found.values())
    return {"rehearsal": rehearsal, "passed": passed, "machine": machine(scale), "seconds": now() - begin, **found}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="env/gpu-check", description="GPU checks in under six minutes.")
    parser.add_argument("--output", default="results/gpu-check.json", metavar="FILE", help="default: %(default)s")
    parser.add_argument("--rehearse", action="store_true", help="the same code on the CPU, over tiny shapes")
    flags = parser.parse_args(arguments)
    if not flags.rehearse and not torch.cuda.is_available():
        print(
            f"gpu-check: PyTorch {torch.__version__} sees no CUDA device, so nothing was checked; --rehearse runs the "
            "same code on the CPU",
            file=sys.stderr,
        )
        return NO_DEVICE
    result = run(scales()[flags.rehearse], flags.rehearse)
    try:
        write_text(Path(flags.output), json.dumps(result, indent=1) + "\n")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    failed = [name for name in CHECKS if result[name]["passed"] is False]
    print(f"gpu-check: {'failed: ' + ', '.join(failed) if failed else 'passed'}; {flags.output}", file=sys.stderr)
    return FAILED if failed else PASSED


if __name__ == "__main__":
    sys.exit(main())
