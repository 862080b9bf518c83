"""Model folders of published shapes without weights."""

import shutil
from dataclasses import asdict
from pathlib import Path

from rtpo.planning.data import model_shape
from rtpo.run.config import PROJECT

TOKENIZER = PROJECT / "rtpo" / "toy" / "warm_start_math"
POSITIONS = 40960
"""max_position_embeddings of Qwen3's config.json"""


def shaped(name: str, folder: Path) -> Path:
    """config.json of a model that rtpo/planning/hardware.yaml has, and a small tokenizer, in `folder`/`name`. Raises
    DataError."""
    from transformers import AutoConfig

    path = folder / name
    path.mkdir(parents=True)
    for file in TOKENIZER.glob("*token*.json"):
        shutil.copy(file, path)
    shape = asdict(model_shape(name, ""))
    described = AutoConfig.for_model(**shape, max_position_embeddings=POSITIONS, architectures=["Qwen3ForCausalLM"])
    described.save_pretrained(path)
    return path
