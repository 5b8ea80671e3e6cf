"""An EAGLE head in the engine: one call a step, on the products of the model it drafts for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import addressof

import torch
from torch import Tensor

from specdec.models import rotary
from specdec.models.blocks import BlockWeights
from specdec.models.eagle import EagleConfig, at
from specdec.models.kvcache import KVCache
from specdec.models.native.forward import Engine, NativeModel, row_address, token_ids
from specdec.models.native.rows import Rows
from specdec.models.native.structs import BREADTH, Guess, Head, Layer
from specdec.models.quantised import Matrix, Quantised


class NativeHead(Engine):
    """`weights` are named as `EagleConfig` names them; `target` gives the embedding, unless one is among them, and
    EAGLE-1's last product."""

    def __init__(self, config: EagleConfig, weights: Mapping[str, Matrix], target: NativeModel):
        super().__init__(target.loaded, config)
        self._target = target  # its memory is used here
        self._embedding = weights.get("embedding", target.embedding).bfloat16().contiguous()
        w = {name: weight if isinstance(weight, Quantised) else weight.bfloat16() for name, weight in weights.items()}
        place = self.arena.product
        self._layers = (Layer * config.layers)(*(self.layer(_block(w, index)) for index in range(config.layers)))

        def norm(name: str) -> int | None:
            return self.arena.floats(weights[name]) if name in weights else None

        self._head = Head(
            shape=self.shape,
            fc=place(w["fc"], w.get("fc.bias")),
            head=place(w["head"], w.get("head.bias")) if config.version == 3 else target.head,
            embedding=self._embedding.data_ptr(),
            input_norm=norm("input"),
            hidden_norm=norm("hidden"),
            final_norm=norm("final"),
            layers=addressof(self._layers),
            count=config.layers,
            norm_before_residual=config.norm_before_residual,
        )
        products = (self._head.fc, *(p for layer in self._layers for p in (layer.qkv, layer.o, layer.down)))
        self._turns = self._table(512)
        self._wide = max(2 * config.hidden_size, *(product.inputs for product in products))

    @torch.inference_mode()
    def step(
        self,
        tokens: Sequence[int],
        cache: KVCache,
        *,
        features: Tensor | None = None,
        states: Tensor | None = None,
        positions: Sequence[int] | None = None,
        mask: Tensor | None = None,
        scored: int = 0,
    ) -> tuple[Tensor, Tensor | None]:
        """As `EagleHead.step`."""
        rows = Rows.behind(cache, len(tokens), positions, mask)
        if max(rows.positions) >= len(self._turns):
            self._turns = self._table(2 * max(rows.positions))
        ids, count, threads = token_ids(tokens, len(self._embedding)), len(tokens), torch.get_num_threads()
        if self.config.version == 1 and states is None:
            features, states = None, features
        features, states = (None if given is None else given.float().contiguous() for given in (features, states))
        out = torch.empty(count, self.config.hidden_size)
        logits = torch.empty(scored, self._head.head.outputs) if scored else None
        work = self.buffers(self._layers[0], self._wide, rows.capacity, threads)
        for first, place in rows.places(self._turns):
            begin = max(first, count - scored)  # the first row of this piece that is scored
            end = min(first + BREADTH, count)
            here = max(0, end - begin)
            guess = Guess(
                tokens=addressof(ids) + 4 * first,
                features=row_address(features, first),
                states=row_address(states, first),
                out=row_address(out, first),
                logits=row_address(logits, begin - (count - scored)) if here else None,
                scored=here,
                seconds=None if self.seconds is None else addressof(self.seconds),
            )
            self.call(self.loaded.eagle, self._head, work, place, guess, threads=threads)
        cache.length = rows.slots.stop
        return out, logits

    def _table(self, positions: int) -> Tensor:
        return rotary.table(self.config, positions, torch.bfloat16, torch.device("cpu"))


def _block(weights: Mapping[str, Matrix], index: int) -> BlockWeights:
    """A layer; the input of the first is normed by the head's own front."""

    def own(name: str) -> Matrix | None:
        return weights.get(at(name, index))

    def bias(name: str) -> Tensor | None:
        return weights.get(f"{at(name, index)}.bias")

    gate, up = own("gate_up").chunk(2)
    gate_bias, up_bias = (None, None) if bias("gate_up") is None else bias("gate_up").chunk(2)
    return BlockWeights(
        qkv=own("qkv"),
        o=own("o"),
        gate=gate,
        up=up,
        down=own("down"),
        attention_norm=own("input") if index else None,
        mlp_norm=own("post"),
        gate_bias=gate_bias,
        up_bias=up_bias,
        **{f"{name}_bias": bias(name) for name in ("qkv", "o", "down")},
    )
