"""Everything that imports verl, ray or vllm. The rest of the project runs without them.

plugin          what verl must know in every process: the CPU platform
fsdp_engine     what verl's FSDP2 engine does otherwise here: micro-batches, the output layer's group
fsdp_cpu        verl's FSDP engine registered for CPU
rollout_server  the embedded rollout server, its replica and its weight-sync adapter
vllm_server     verl's vLLM server with what it leaves out of vLLM's answers
vllm_worker     verl's extension of vLLM's workers, which takes weights, with a look at whether they are whole
worker          verl's actor-rollout worker with our loss
settings        verl's own config tree, composed and checked; how its sockets are told apart
engines         engine clients: the embedded servers, verl's vLLM servers
backend         worker group and engine as `rtpo.harness.harness` drives them
session         one Ray start, a live backend and a tracker from a run's configuration
stock           what stock verl needs on a CPU, for the benchmark against it
"""

import warnings

# at its import, in every process, verl warns of each training engine that is not installed
warnings.filterwarnings(
    "ignore", "(torchtitan|veomni|automodel|mindspeed|megatron) engine is not available", UserWarning
)
