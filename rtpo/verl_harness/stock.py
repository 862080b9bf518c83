"""What stock `verl.trainer.main_ppo` needs on a CPU besides the plugin. verl's processes import it as `external_lib`.

Its process group has a backend that torch accepts; its reward needs no tool.
"""

from functools import partial
from typing import Any
from zlib import crc32

from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers import engine_workers

from rtpo.verl_harness import fsdp_cpu  # noqa: F401  (its engine registers itself)

# verl would name the CPU twice ("cpu:gloo,cpu:gloo"), which torch refuses
engine_workers.initialize_global_process_group_ray = partial(initialize_global_process_group_ray, backend="cpu:gloo")


def compute_score(solution_str: str, **_: Any) -> float:
    """A coin toss from the reply's text, so that rewards in a group differ and no group is skipped."""
    return float(crc32(solution_str.encode()) % 2)
