"""What of a first hour on GPUs needs none: every element's settings, taken by verl's workers and vLLM's server.

Without the GPU set, one experiment goes as far as verl's workers.
"""

import shutil
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from rtpo.planning.hardware import model_shape
from rtpo.run.config import RunConfig
from rtpo.run.experiments import experiments, load_experiment
from rtpo.toy.warm_start import SHIPPED

GPU_PROFILES = ("a100x8", "a100x1", "h100x8", "h100x1", "h200x8", "h200x1")
HAS_VLLM = any("cpu" not in found.version for found in distributions(name="vllm"))
"""the GPU set's, which can be configured without a GPU"""
NAMES = experiments() if HAS_VLLM else ["gsm8k_audit"]
SERVER = ("task.settings.server.base_url=http://127.0.0.1:1/v1", "task.settings.server.model=user")
"""of the airline's user, which each site names for itself"""

Take = Callable[[RunConfig], None]


@pytest.fixture(scope="module")
def take(tmp_path_factory: pytest.TempPathFactory) -> Take:
    """Raises ConfigError for settings that verl or vLLM refuses; equal settings are asked about once."""
    from rtpo.verl_harness.session import settings_of

    folder, known = tmp_path_factory.mktemp("models"), set()

    def take(run: RunConfig) -> None:
        key = repr((run.model.name, run.profile.processes, run.profile.nodes, run.verl["actor_rollout_ref"]))
        if key in known:
            return
        settings = settings_of(run)  # which settles verl's platform
        from verl_workers import worker_configs

        settings.actor_rollout_ref.model.path = str(model_folder(run.model.name, folder))
        worker_configs(settings)
        if HAS_VLLM:
            from vllm_engine_config import engine_config

            engine_config(settings)
        known.add(key)

    return take


def model_folder(name: str, folder: Path) -> Path:
    """config.json of a published shape, and a small tokenizer; no weights."""
    path = folder / name
    if not path.exists():
        path.mkdir()
        for file in (SHIPPED / "warm_start_math").glob("*token*.json"):
            shutil.copy(file, path)
        shape: dict[str, Any] = asdict(model_shape(name, "")) | {"max_position_embeddings": 40960}
        AutoConfig.for_model(**shape, architectures=["Qwen3ForCausalLM"]).save_pretrained(path)
    return path


@pytest.mark.parametrize("profile", GPU_PROFILES)
@pytest.mark.parametrize("name", NAMES)
def test_every_element_is_taken_by_verls_workers_and_vllm(name: str, profile: str, take: Take) -> None:
    elements = load_experiment(name, [f"profile={profile}", *(SERVER if "airline" in name else ())]).elements
    for element in elements:
        take(element.run)
    assert elements
