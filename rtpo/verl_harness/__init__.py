"""Everything that imports verl, ray or vllm. The rest of the project runs without them.

plugin          what verl must know in every process: the CPU platform
fsdp_cpu        verl's FSDP engine registered for CPU
rollout_server  the embedded rollout server, its replica and its weight-sync adapter
worker          verl's actor-rollout worker with our loss
settings        verl's own config tree, composed and checked
backend         one Ray start, one worker group, one engine: what `rtpo.harness` drives
"""
