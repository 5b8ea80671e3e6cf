"""The engine computes what PyTorch computes, to the bit alike for every width, tree and number of threads."""

import ctypes
import os
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from specdec.models import rotary
from specdec.models.blocks import BlockWeights
from specdec.models.native import build, native_for, obstacle
from specdec.models.native.structs import Product
from specdec.training.rows import RowCache, step
from specdec.tree import Draft
from tests.helpers import tiny
from tests.helpers.engine import product

pytestmark = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))

SHAPES = {
    "odd": {
        "hidden_size": 39,
        "intermediate_size": 51,
        "head_dim": 6,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
    },
    "one block": {"hidden_size": 16, "intermediate_size": 16, "head_dim": 16},
    "past a block": {
        "hidden_size": 17,
        "intermediate_size": 33,
        "head_dim": 34,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
    },
    "seven blocks": {"hidden_size": 114, "intermediate_size": 97, "head_dim": 64, "num_attention_heads": 6},
    "wide heads": {"hidden_size": 64, "intermediate_size": 128, "head_dim": 128},
    "five heads a group": {
        "hidden_size": 80,
        "intermediate_size": 128,
        "head_dim": 100,
        "num_attention_heads": 10,
        "num_key_value_heads": 2,
    },
    "narrow layer, wide state": {"hidden_size": 92, "intermediate_size": 20, "head_dim": 2},
}


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("inputs", [1, 2, 31, 64, 577])
@pytest.mark.parametrize("outputs", [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97, 200])
def test_products_of_any_shape_are_products(inputs, outputs):
    weight, bias = drawn(outputs, inputs).bfloat16(), drawn(outputs, seed=1).bfloat16()
    x = drawn(33, inputs, seed=2).bfloat16()
    exact = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(product(x, weight, bias).double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(96, 32), (576, 576), (1536, 576), (576, 1536), (81, 45)])
def test_products_are_bit_exact_for_every_width_and_number_of_threads(shape):
    weight, x = drawn(*shape).bfloat16(), drawn(70, shape[1], seed=1).bfloat16()
    together = product(x, weight)
    for width in [*range(1, 34), 64, 65]:
        for team in (1, 2, 3):
            assert torch.equal(product(x[:width], weight, threads=team), together[:width]), f"width {width}"
    for row in range(0, 70, 7):
        assert torch.equal(product(x[row : row + 1], weight), together[row : row + 1])


def rounded(config, weights: dict, tokens: list[int], eps: float) -> torch.Tensor:
    """The forward in float64 arithmetic, rounded to bf16 just where the engine rounds: logits [rows, V]."""

    def narrow(x):
        return x.float().bfloat16().double()

    def norm(x, weight):
        return F.rms_norm(x, x.shape[-1:], weight.bfloat16().double(), eps)

    def linear(x, weight, bias=None):
        out = narrow(x) @ weight.double().T
        return out if bias is None else out + bias.double()

    c, rows = config, len(tokens)
    turns = rotary.table(c, rows, torch.float64, torch.device("cpu"))
    hidden = weights["model.embed_tokens.weight"].bfloat16()[tokens].double()
    for i in range(c.layers):
        w = BlockWeights.of(c, lambda name, i=i: weights[f"model.layers.{i}.{name}"].bfloat16())
        heads = linear(norm(hidden, w.attention_norm), w.qkv, w.qkv_bias).view(rows, -1, c.head_dim)
        q, k, v = heads.split([c.heads, c.kv_heads, c.kv_heads], 1)
        if c.qk_norm:
            q, k = norm(q, w.q_norm), norm(k, w.k_norm)
        q, k = (narrow(rotary.rotate(x.contiguous(), turns)) for x in (q, k))
        sides = (x.transpose(0, 1).repeat_interleave(c.heads // c.kv_heads, 0) for x in (k, narrow(v)))
        mixed = F.scaled_dot_product_attention(q.transpose(0, 1), *sides, is_causal=True).transpose(0, 1).flatten(1)
        hidden = hidden + linear(mixed, w.o, w.o_bias)
        normed = norm(hidden, w.mlp_norm)
        gated = F.silu(linear(normed, w.gate, w.gate_bias)) * linear(normed, w.up, w.up_bias)
        hidden = hidden + linear(gated, w.down, w.down_bias)
    head = weights["model.embed_tokens.weight" if c.tied else "lm_head.weight"].bfloat16()
    return linear(norm(hidden, weights["model.norm.weight"]), head)


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for the odd rounding to bf16 that falls the other way."""
    error = (found.double() - expected).abs() / expected.std()
    assert error.max() < 0.02 and error.mean() < 0.002, (error.max(), error.mean())


@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_the_forward_is_the_reference_rounded_where_the_engine_rounds(variant):
    theirs = tiny.reference(variant)
    model, text = tiny.convert(theirs, torch.bfloat16), tiny.prompt_of(40)
    near(model.forward(text, model.new_cache(64)).logits, rounded(model.config, theirs.state_dict(), text, 1e-5))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_so_it_is_for_shapes_that_fill_no_block(shape):
    theirs = tiny.reference("llama-biases", **shape)
    model, text = tiny.convert(theirs, torch.bfloat16), tiny.prompt_of(150)
    near(model.forward(text, model.new_cache(150)).logits, rounded(model.config, theirs.state_dict(), text, 1e-5))


@pytest.mark.parametrize("variant, shape", [(v, {}) for v in tiny.FAMILIES] + [("llama", s) for s in SHAPES.values()])
def test_logits_and_taps_are_the_same_bits_for_every_width_and_number_of_threads(variant, shape, threads):
    model = tiny.convert(tiny.reference(variant, 3, **shape), torch.bfloat16)
    text, taps, start = tiny.prompt_of(120), (0, 2, 3), 21
    threads(1)
    whole = model.forward(text, model.new_cache(128), taps=taps)
    for team in (1, 2, 3):
        threads(team)
        cache = model.new_cache(128)
        model.forward(text[:start], cache, logits=False)
        for width in [*range(1, 33), 64, 65, 99]:
            cache.truncate(start)
            part = model.forward(text[start : start + width], cache, taps=taps)
            rows = slice(start, start + width)
            assert torch.equal(part.logits, whole.logits[rows]), f"width {width}, {team} threads"
            assert torch.equal(part.features, whole.features[rows]), f"width {width}, {team} threads"


@pytest.mark.parametrize("count", [6, 31, 80])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_node_of_a_tree_gets_bit_for_bit_what_its_path_gets(family, count, threads):
    model = tiny.transformer(family, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(count)
    parents = tuple(int(torch.randint(-1, j, (1,), generator=generator)) if j else -1 for j in range(count))
    prompt, tree = (
        tiny.prompt_of(20),
        Draft(tuple(tiny.prompt_of(count, seed=1)), parents, law="with_replacement", q=torch.ones(1)),
    )
    cache = model.new_cache(128)
    model.forward(prompt[:-1], cache, logits=False)
    rows = [prompt[-1], *tree.tokens]
    threads(2)
    scored = model.forward(rows, cache, positions=tree.positions(19), mask=tree.mask(), taps=(1, 2))
    threads(1)
    for node in range(count):
        path, at = [], node
        while at >= 0:
            path, at = [tree.tokens[at], *path], parents[at]
        cache.truncate(19)
        for token in [prompt[-1], *path]:
            alone = model.forward([token], cache, taps=(1, 2))
        assert torch.equal(scored.logits[node + 1], alone.logits[0]), f"node {node}"
        assert torch.equal(scored.features[node + 1], alone.features[0]), f"node {node}"


@pytest.mark.parametrize(
    "plan", [[0], [0, 1], [(0, True, False), (1, False, True), (2, True, True)], [(0, False, False)]]
)
def test_plans_run_the_named_blocks_alone(plan):
    """A model whose other blocks write nothing gives the same."""
    plan = [(step, True, True) if isinstance(step, int) else step for step in plan]
    theirs = tiny.reference("qwen2", 3, seed=4)
    model, text = tiny.convert(theirs, torch.bfloat16), tiny.prompt_of(40)
    weights, on = dict(theirs.state_dict()), {step[0]: step[1:] for step in plan}
    for i in range(3):
        for kept, name in zip(on.get(i, (False, False)), ("self_attn.o_proj", "mlp.down_proj"), strict=True):
            if not kept:
                weights[f"model.layers.{i}.{name}.weight"] = torch.zeros_like(
                    weights[f"model.layers.{i}.{name}.weight"]
                )
    found = model.forward(text, model.new_cache(64), plan=plan).logits
    near(found, rounded(model.config, weights, text, 1e-5))


def test_taps_outside_the_plan_are_refused():
    model = tiny.transformer("llama", layers=3, dtype=torch.bfloat16)
    with pytest.raises(KeyError, match="2"):
        model.forward([5], model.new_cache(8), plan=model.full_plan[:2], taps=(1, 2))


def test_token_ids_that_the_embedding_lacks_are_refused():
    model = tiny.transformer("llama", dtype=torch.bfloat16)
    for tokens in ([3, tiny.VOCABULARY], [-1]):
        with pytest.raises(IndexError, match="96"):
            model.forward(tokens, model.new_cache(8))


def test_rows_with_caches_of_their_own_get_what_each_gets_alone():
    model, lengths = tiny.transformer("qwen3", dtype=torch.bfloat16), [0, 3, 30, 70, 7] * 14
    cache, expected = RowCache(model, len(lengths), 80), []
    for row, length in enumerate(lengths):
        text, own = tiny.prompt_of(length + 1, seed=row), model.new_cache(80)
        if length:
            model.forward(text[:-1], own, logits=False)
        cache.keys[:, row, :, :length] = own.keys[:, :, :length]
        cache.values[:, row, :, :length] = own.values[:, :, :length]
        cache.lengths[row] = length
        expected.append(model.forward(text[-1:], own).logits)
    tokens = [tiny.prompt_of(length + 1, seed=row)[-1] for row, length in enumerate(lengths)]
    assert torch.equal(step(model, cache, tokens), torch.cat(expected))
    assert cache.lengths.tolist() == [length + 1 for length in lengths]


def test_the_head_alone_is_the_head_of_the_forward():
    model, text = tiny.transformer("llama", dtype=torch.bfloat16), tiny.prompt_of(70)
    out = model.forward(text, model.new_cache(80), taps=(2,))
    assert torch.equal(model.head(out.features), out.logits)


def test_other_number_formats_take_the_reference_path():
    assert native_for(torch.float32, torch.device("cpu")) is None
    assert tiny.transformer("llama", dtype=torch.float64).native is None


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"PATH": "", "CC": ""}, "no C compiler"),
        ({"SPECDEC_NATIVE": "0"}, "SPECDEC_NATIVE"),
        ({"CC": "false"}, "refused"),
    ],
)
def test_without_the_engine_decoding_goes_on_and_says_why(monkeypatch, tmp_path, change, reason):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    build._loaded.cache_clear(), build.library.cache_clear()
    try:
        assert reason in obstacle()
        model = tiny.convert(tiny.reference("llama"), torch.bfloat16)
        assert model.native is None
        assert model.forward([5, 6], model.new_cache(8)).logits.dtype == torch.float32
    finally:
        monkeypatch.undo()
        build._loaded.cache_clear(), build.library.cache_clear()


def test_a_processor_without_the_instructions_is_named(monkeypatch):
    monkeypatch.setattr(build, "_processor", lambda: b"flags : fpu avx2")
    build._loaded.cache_clear()
    try:
        assert "AVX-512 bf16" in obstacle()
    finally:
        monkeypatch.undo()
        build._loaded.cache_clear()


def test_both_languages_see_the_same_structs(monkeypatch):
    from specdec.models.native import structs

    monkeypatch.setattr(structs, "Product", type("Product", (Product,), {"_fields_": [("more", ctypes.c_int64)]}))
    with pytest.raises(AssertionError, match="structs differ"):
        structs.check(native_for(torch.bfloat16, torch.device("cpu")))


def test_no_access_outside_of_a_buffer_and_nothing_undefined(tmp_path):
    """Everything over odd shapes, in a program of its own, built with the compiler's sanitizers."""
    program, driver = tmp_path / "driver", Path(__file__).with_name("native_driver.c")
    flags = ("-O1", "-g", "-march=native", "-fopenmp", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    sources = [str(driver), *map(str, build.FOLDER.glob("*.c"))]
    (tmp_path / "empty.c").write_text("int main(void) { return 0; }\n")
    empty = [build.compiler(), *flags, "-o", str(program), str(tmp_path / "empty.c")]
    if subprocess.run(empty, capture_output=True).returncode:
        pytest.skip("the compiler has no sanitizers")
    command = [build.compiler(), *flags, "-Wall", "-Werror", f"-I{build.FOLDER}", "-o", str(program), *sources, "-lm"]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    # the threads' own memory is never given back, which is no leak of ours
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([str(program)], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "clean\n"), done.stderr
