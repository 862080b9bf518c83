"""What stock `verl.trainer.main_ppo` needs on a CPU beside the plugin: imported in its processes by `external_lib`.

A process group with a backend torch accepts, turns of one fixed length, and a reward that needs no tool.
"""

from functools import partial
from typing import Any
from zlib import crc32

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers import engine_workers

from rtpo.verl_harness import fsdp_cpu  # noqa: F401  (its engine registers itself)

# verl would name the CPU twice ("cpu:gloo,cpu:gloo"), which torch refuses
engine_workers.initialize_global_process_group_ray = partial(initialize_global_process_group_ray, backend="cpu:gloo")


@register("fixed_length_agent")
class FixedLengthAgent(SingleTurnAgentLoop):
    """verl's single-turn agent, asking for exactly the response length."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        return await super().run({**sampling_params, "max_tokens": self.response_length}, **kwargs)


def compute_score(solution_str: str, **_: Any) -> float:
    """A coin toss by the reply's text: no group is tied, so that nothing can be skipped."""
    return float(crc32(solution_str.encode()) % 2)
