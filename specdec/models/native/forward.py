"""A model of the Llama family in the engine: its weights packed, its buffers made once, its forward one call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import addressof, byref
from functools import lru_cache

import torch
from torch import Tensor

from specdec.models.blocks import BlockWeights
from specdec.models.native.build import library
from specdec.models.native.rows import Rows
from specdec.models.native.structs import BREADTH, Arena, Asked, Layer, Model, Product, Shape, Step, Work, check
from specdec.models.quantised import Matrix

PARTS = ("products", "attention", "rows")
"""What `Engine.seconds` counts; `rows`: norms, gates, rotations."""


def native_for(dtype: torch.dtype, device: torch.device) -> ctypes.CDLL | None:
    """The engine's library, where it serves this number format and device."""
    return library() if dtype == torch.bfloat16 and device.type == "cpu" else None


class Engine:
    """What a model and an EAGLE head share: weights, buffers and the clock inside."""

    seconds: ctypes.Array | None = None
    """Of all engines.  Set to a `timer()`, it adds up the seconds of every call by part (`PARTS`)."""

    def __init__(self, loaded: ctypes.CDLL, config):
        check(loaded)
        loaded.attention_scratch.restype = ctypes.c_int64
        self.loaded, self.config, self.arena = loaded, config, Arena(loaded)
        self.shape = Shape(config.hidden_size, config.heads, config.kv_heads, config.head_dim, config.eps)
        self._room = (0, 0)

    def layer(self, weights: BlockWeights) -> Layer:
        """The struct of a decoder layer; norms that it lacks are null."""
        place, w = self.arena.product, weights

        def norm(weight: Tensor | None) -> int | None:
            return None if weight is None else self.arena.floats(weight)

        return Layer(
            qkv=place(w.qkv, w.qkv_bias),
            o=place(w.o, w.o_bias),
            gate=place(w.gate, w.gate_bias),
            up=place(w.up, w.up_bias),
            down=place(w.down, w.down_bias),
            attention_norm=norm(w.attention_norm),
            mlp_norm=norm(w.mlp_norm),
            q_norm=norm(w.q_norm),
            k_norm=norm(w.k_norm),
        )

    def call(self, function: Callable, *structs: ctypes.Structure, threads: int) -> None:
        """Every pass goes through here, so that a profiler can look on."""
        function(*map(byref, structs), ctypes.c_int64(threads))

    def buffers(self, layer: Layer, wide: int, capacity: int, threads: int) -> Work:
        """The buffers of a pass, made again only when more threads or a longer cache ask for it."""
        if threads > self._room[0] or capacity > self._room[1]:
            self._room = room = (max(threads, self._room[0]), max(capacity, self._room[1]))
            scratch = self.loaded.attention_scratch(byref(self.shape), ctypes.c_int64(room[1]))
            scratch = max(scratch, self.config.hidden_size) + 16
            floats = {
                "hidden": self.config.hidden_size,
                "qkv": layer.qkv.outputs,
                "gate": layer.gate.outputs,
                "up": layer.up.outputs,
            }
            narrow = {"mixed": layer.o.inputs, "gated": layer.down.inputs}
            self._held = {name: torch.empty(BREADTH, size) for name, size in floats.items()}
            self._held |= {name: torch.empty(BREADTH, size, dtype=torch.bfloat16) for name, size in narrow.items()}
            self._held["x"] = torch.empty(room[0], BREADTH, wide, dtype=torch.bfloat16)
            self._held["scratch"] = torch.empty(room[0], scratch)
            addresses = {name: held.data_ptr() for name, held in self._held.items()}
            self._work = Work(**addresses, wide=wide, scratch_size=scratch)
        return self._work


def timer() -> ctypes.Array:
    return (ctypes.c_double * (len(PARTS) + 1))()


class NativeModel(Engine):
    """`blocks` of raw weights, one a layer; `head` [V, hidden]; `embedding` [vocabulary, hidden] is used as it is."""

    def __init__(self, loaded: ctypes.CDLL, config, embedding: Tensor, blocks, norm: Tensor, head: Matrix):
        super().__init__(loaded, config)
        self.embedding = embedding.contiguous()
        self._layers = (Layer * config.layers)(*(self.layer(block) for block in blocks))
        self.head: Product = self.arena.product(head)
        self._model = Model(
            shape=self.shape,
            head=self.head,
            embedding=self.embedding.data_ptr(),
            final_norm=self.arena.floats(norm),
            layers=addressof(self._layers),
            count=config.layers,
        )
        self._wide = max(config.hidden_size, config.intermediate_size, config.heads * config.head_dim)

    def forward(
        self,
        tokens: Sequence[int],
        rows: Rows,
        turns: Tensor,
        plan: Sequence,
        taps: Sequence[int] = (),
        logits: bool = True,
        states: Tensor | None = None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """(logits [rows, V], features [rows, taps * hidden], what the plan's layers leave [rows, hidden]), in single
        precision; None where not asked for.  `states` [rows, hidden] take the place of the tokens' embeddings."""
        ids, steps = token_ids(tokens, len(self.embedding)), _steps(tuple(plan))
        missing = set(taps) - {step[0] for step in plan} - {self.config.layers}
        if missing:
            raise KeyError(f"taps {sorted(missing)} lie outside the plan")
        hidden, count, threads = self.config.hidden_size, len(tokens), torch.get_num_threads()
        scores = torch.empty(count, self.head.outputs) if logits else None
        features = torch.empty(count, len(taps) * hidden) if taps else None
        left, states = torch.empty(count, hidden), None if states is None else states.float().contiguous()
        tapped = (ctypes.c_int64 * len(taps))(*taps)
        work = self.buffers(self._layers[0], self._wide, rows.capacity, threads)
        for first, place in rows.places(turns):
            asked = Asked(
                tokens=addressof(ids) + 4 * first,
                states=row_address(states, first),
                left=row_address(left, first),
                plan=addressof(steps),
                steps=len(plan),
                taps=addressof(tapped),
                tapped=len(taps),
                features=row_address(features, first),
                logits=row_address(scores, first),
                seconds=None if self.seconds is None else addressof(self.seconds),
            )
            self.call(self.loaded.forward, self._model, work, place, asked, threads=threads)
        return scores, features, left

    def logits(self, normed: Tensor) -> Tensor:
        """[rows, V] of rows behind the final norm."""
        x = normed.bfloat16().contiguous()
        out = torch.empty(len(x), self.head.outputs)
        threads = ctypes.c_int64(torch.get_num_threads())
        self.loaded.multiply(
            byref(self.head),
            ctypes.c_void_p(x.data_ptr()),
            ctypes.c_void_p(out.data_ptr()),
            ctypes.c_int64(len(x)),
            threads,
        )
        return out


def token_ids(tokens: Sequence[int], vocabulary: int) -> ctypes.Array:
    """As C takes them; C looks them up unseen."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise IndexError(f"token ids go from 0 to {vocabulary - 1}, not from {min(tokens)} to {max(tokens)}")
    return (ctypes.c_int32 * len(tokens))(*tokens)


def row_address(tensor: Tensor | None, row: int) -> int | None:
    """Of a contiguous tensor's row."""
    return None if tensor is None else tensor.data_ptr() + row * tensor.stride(0) * tensor.itemsize


@lru_cache(maxsize=64)
def _steps(plan: tuple) -> ctypes.Array:
    return (Step * len(plan))(*(Step(*step) for step in plan))
