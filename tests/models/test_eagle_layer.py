"""The head's layer is the one that was published, written out line by line."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from specdec.models import rotary
from specdec.models.eagle import EagleLayer
from tests.helpers import heads


def norm(x, weight, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


@pytest.mark.parametrize("before", [False, True])
def test_an_eagle_3_layer_adds_to_the_state_as_it_came_or_normalised_as_its_file_says(before):
    """Attention is left out of the comparison: each row is given what its own value says."""
    config = heads.config_of(norm_before_residual=before)
    w = {name: value.double() for name, value in heads.weights_of(config).items()}
    products = {name: (lambda x, weight=w[name]: F.linear(x, weight)) for name in config.shapes()}
    layer = EagleLayer(config, products, w)
    generator = torch.Generator().manual_seed(0)
    embedded, hidden = (torch.randn(5, 32, generator=generator, dtype=torch.float64) for _ in range(2))
    turns = rotary.table(config, 5, torch.float64, torch.device("cpu"))
    groups = config.heads // config.kv_heads
    found = layer.step(embedded, hidden, lambda layer, q, k, v: v.repeat_interleave(groups, dim=-2), turns)

    u, e = norm(hidden, w["hidden"], config.eps), norm(embedded, w["input"], config.eps)
    values = F.linear(torch.cat([e, u], -1), w["qkv"])[:, -config.kv_heads * config.head_dim :]
    spread = values.unflatten(-1, (config.kv_heads, config.head_dim)).repeat_interleave(groups, dim=-2).flatten(-2)
    a = (u if before else hidden) + F.linear(spread, w["o"])
    gate, up = F.linear(norm(a, w["post"], config.eps), w["gate_up"]).chunk(2, -1)
    expected = a + F.linear(F.silu(gate) * up, w["down"])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    logits = F.linear(norm(expected, w["final"], config.eps), w["head"])
    torch.testing.assert_close(layer.logits(found), logits, rtol=1e-12, atol=1e-12)
