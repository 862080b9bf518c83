"""The models that the embedded engine and prefix trees compute, and names of their tensors."""

from typing import Final

MODEL_TYPES: Final = ("qwen3", "qwen2", "llama")
"""supported model types, as config.json names them"""
EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"
