"""Models: one decoder-only forward for the Llama family, its cache, its weights and its tokenizer."""

from specdec.models.config import FAMILIES, ModelConfig
from specdec.models.kvcache import KVCache
from specdec.models.loading import LoadedModel, load_model
from specdec.models.transformer import Output, Transformer

__all__ = ["FAMILIES", "KVCache", "LoadedModel", "ModelConfig", "Output", "Transformer", "load_model"]
