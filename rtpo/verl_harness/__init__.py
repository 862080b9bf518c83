"""Everything that imports verl, ray or vllm. The rest of the project runs without them.

plugin          what verl must know in every process: the CPU platform
fsdp_engine     our changes to verl's FSDP2 engine: micro-batches, the output layer's group
fsdp_cpu        verl's FSDP engine registered for CPU
rollout_server  the embedded rollout server, its replica and its weight-sync adapter
vllm_server     verl's vLLM server, which also returns why a turn ended and the largest log-probs
vllm_worker     verl's extension of vLLM's workers, which checks that the weights arrive complete
worker          verl's actor-rollout worker with our loss
settings        verl's own config tree, composed and checked; names of its sockets
engines         engine clients: the embedded servers, verl's vLLM servers
backend         worker group and engine as `rtpo.harness.harness` drives them
session         one Ray start, a live backend and a tracker from a run's configuration
memory          gives freed memory back to the system
stock           additions that stock verl needs on a CPU, for the benchmark against it
"""

import warnings

# on import, in every process, verl warns of each training engine that is not installed
warnings.filterwarnings(
    "ignore", "(torchtitan|veomni|automodel|mindspeed|megatron) engine is not available", UserWarning
)
