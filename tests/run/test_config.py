"""Composition: every algorithm on every toy task, and a sentence with the fields' names for what cannot be."""

import pytest
from conftest import compose_config

from rtpo.engines.base import Sampling
from rtpo.errors import ConfigError
from rtpo.run.building import leaves
from rtpo.run.config import PROJECT, RunConfig, rollout_sampling
from rtpo.run.model_folder import check_model

ALGORITHMS = sorted(path.stem for path in (PROJECT / "configs" / "algorithm").glob("*.yaml"))
TOY_TASKS = sorted(path.stem for path in (PROJECT / "configs" / "task").glob("toy_*.yaml"))


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose_config(*overrides)
    return str(caught.value)


ON_TASKS = [(algorithm, "toy_math") for algorithm in ALGORITHMS]
ON_TASKS += [(algorithm, task) for algorithm in ("rtpo", "grpo_exact") for task in TOY_TASKS if task != "toy_math"]


@pytest.mark.parametrize(("algorithm", "task"), ON_TASKS)
def test_every_algorithm_and_every_toy_task_composes(algorithm: str, task: str) -> None:
    config = compose_config(f"algorithm={algorithm}", f"task={task}")
    assert isinstance(config, RunConfig)
    assert (config.label, config.task.name) == (algorithm, task)
    assert config.folder.name == f"{algorithm}-seed0"
    built = config.algorithm_config
    assert type(built) is config.descriptor.config
    assert config.descriptor.check(built) == []
    assert {name: getattr(built, name) for name in config.algorithm} == config.algorithm


CONTROLS = {"grpo_exact": "training_context", "arpo_exact": "training_context", "tree_grpo_exact": "training_context"}
CONTROLS |= {"rtpo_off": "sync_every", "rtpo_sync_2": "sync_every", "rtpo_sync_kl": "sync_kl", "rtpo_g4": "group_size"}
"""methods, and the field in which each differs from the method whose name it begins with"""


def differences(*overrides: tuple[str, ...]) -> set[str]:
    first, second = (dict(leaves(compose_config(*each).as_dict())) for each in overrides)
    return {field for field in first | second if first.get(field) != second.get(field)}


def test_an_override_changes_that_field_only() -> None:
    assert differences((), ("algorithm.trunks=3", "save.keep=3")) == {"algorithm.trunks", "save.keep"}
    for name, field in CONTROLS.items():
        partner, own = f"algorithm={name.rpartition('_')[0].removesuffix('_sync')}", f"algorithm={name}"
        assert differences((partner,), (own,)) == {f"algorithm.{field}", "algorithm.label"}


REFUSED = """
    algorithm.name=nosuch ~algorithm.label seed=??? algorithm.trunks=many seed=true task.held_out.count=99999999999
    algorithm.trunks=2.5 algorithm.rollout_context=half profile.platform=tpu algorithm.group_size=2 algorithm.trunks=0
    algorithm.training_context=flattened algorithm.clip_low=0 algorithm.clip_low=1.5 algorithm.clip_high=-0.1
    algorithm.kl=-0.1 algorithm.epochs=0 algorithm.minibatches=0 sampling.temperature=0 sampling.top_p=0.9
    sampling.top_k=20 budget.rollouts=13 budget.generated_tokens=0 budget.seconds=0 save.every_phases=-1
    task.train.count=15 task.env=chess save.keep=0 profile.processes=0 task.max_context_tokens=32 optimizer.lr=0
    optimizer.betas=[1,0.9] optimizer.betas=[0.9,-0.1] optimizer.weight_decay=-1 profile.scored_share=1.1
    profile.check_trees=1e-4 experiment_name=../x algorithm.label=a/b optimizer.lr=nan sampling.temperature=-inf
    budget.rollouts=99999999999999999999999 seed=9007199254740993 +verl.trainer.x.y=[nan] +verl.z=9007199254740993
    profile.logical_cpus=3 profile.track=[abacus] results= data= model.path= model.name=
"""
VERL = "verl.actor_rollout_ref"
ROLLOUT = f"{VERL}.rollout"
NAMED = f"""
    +algorithm.groupsize=3 : algorithm.groupsize group_size
    +optimizr.lr=3 : optimizr optimizer
    task=booking +task.settings.turns=3 : task.settings.turns
    task=math data=a.jsonl +task.settings.python.cpu_secnds=1 : python.cpu_secnds cpu_seconds
    task=search data=a.jsonl +task.settings.reward.judge.at_onec=1 : reward.judge.at_onec at_once
    task=airline data=a.jsonl budget.rollouts=99 +task.settings.server.max_token=1 : max_token max_tokens
    task=search data=a.jsonl +task.settings.search.requests.per_second=inf : search.requests.per_second
    profile=a100x8 {ROLLOUT}.logprobs_mode=raw_logprobs : {ROLLOUT}.logprobs_mode
    profile=a100x8 algorithm=rtpo_sync_kl : {ROLLOUT}.free_cache_engine
    profile=laptop_lm algorithm=rtpo_sync_kl : {ROLLOUT}.free_cache_engine
    profile=a100x8 algorithm=arpo algorithm.top_logprobs=30 : {ROLLOUT}.engine_kwargs.vllm.max_logprobs
    profile=a100x8 algorithm=arpo {ROLLOUT}.engine_kwargs.vllm.max_logprobs=0 : algorithm.top_logprobs
    algorithm=grpo algorithm.dual_clip=0.5 : algorithm.dual_clip
    algorithm=grpo algorithm.old_logprobs=guess : algorithm.old_logprobs
    algorithm=grpo +algorithm.trunks=4 : algorithm.trunks
    algorithm=grpo algorithm.trunks=4 : algorithm.trunks no field algorithm=grpo
    verl.actor_rollout_ref.rollout.temperature=2 : actor_rollout_ref.rollout.temperature sampling.temperature
    algorithm=grpo algorithm.chain=4 : algorithm.chain algorithm.chains
    algorithm.label=ünï : 'algorithm.label=ünï' quote
    algorithm=grpo budget.rollouts=15 : budget.rollouts
    algorithm=anchored_forks algorithm.fork_turn=3 : algorithm.fork_turn last turn 2
    algorithm=anchored_forks task.max_turns=1 : algorithm.forks last turn 0
    task=math_paper data=a.jsonl : data
    deterministic=true budget.seconds=60 : deterministic
    deterministic=true profile=a100x8 : deterministic
    +{VERL}.actor.optim.lr_scheduler_type=cosine budget.optimizer_steps=70
        {VERL}.actor.optim.total_training_steps=60 : total_training_steps
"""
"""overrides, and the words of one line of the refusal: a field and, where it has none of the name, the nearest"""
OF_VERL = """
    model.lora_rank=8 model.lora_adapter_path=x actor.optim.lr=1 actor.optim.min_lr_ratio=2 actor.optim=3
    actor.strategy=megatron rollout.name=sglang actor.optim.warmup_style=cosine
    actor.optim.lr_scheduler_type=cosine actor.optim.lr_warmup_steps_ratio=.1
"""
"""what verl takes and this project does not do"""
CASES = [f"{one} : {one.lstrip('~+').partition('=')[0]}" for one in REFUSED.split()]
CASES += NAMED.replace("\n        ", " ").strip().splitlines()
CASES += [f"profile=a100x8 ++{VERL}.{one} : {one.partition('=')[0]}" for one in OF_VERL.split()]


@pytest.mark.parametrize("case", CASES)
def test_a_refusal_names_the_field_and_the_nearest(case: str) -> None:
    overrides, _, words = case.partition(" : ")
    assert any(all(word in line for word in words.split()) for line in refusal(*overrides.split()).splitlines())


def test_what_the_refused_is_next_to_is_taken() -> None:
    most = f"{ROLLOUT}.engine_kwargs.vllm.max_logprobs"
    for overrides in (
        "budget.seconds=60 algorithm=grpo budget.rollouts=16",
        "profile=a100x8 algorithm=rtpo_sync_2",
        f"profile=a100x8 algorithm=rtpo_sync_kl {ROLLOUT}.free_cache_engine=false",
        *(f"profile=a100x8 algorithm=arpo algorithm.top_logprobs=30 {most}={count}" for count in (30, -1)),
        f"profile=a100x8 {most}=0",
        "budget.rollouts=0",
        "algorithm=anchored_forks algorithm.fork_turn=2",
        "algorithm=anchored_forks algorithm.forks=0 task.max_turns=1",
        "profile.logical_cpus=4",
        f"++{VERL}.actor.optim.lr_warmup_steps_ratio=0 {VERL}.actor.optim.total_training_steps=60 "
        "budget.optimizer_steps=70",
    ):
        compose_config(*overrides.split())
    assert rollout_sampling(compose_config("budget.rollouts=28")) == Sampling(1.0, 1.0, -1)
    assert compose_config("task=math", "data=a.jsonl").task.train.file == "a.jsonl"
    run = compose_config(f"+{VERL}.actor.optim.lr_scheduler_type=cosine", "budget.optimizer_steps=70")
    assert run.verl["actor_rollout_ref"]["actor"]["optim"]["total_training_steps"] == 70


def test_more_log_probs_than_the_model_has_tokens_are_refused() -> None:
    model = compose_config("algorithm=arpo", "algorithm.top_logprobs=204").model.path
    check_model(model, 204)
    with pytest.raises(ConfigError, match=r"algorithm\.top_logprobs is 205 .* 204 tokens"):
        check_model(model, 205)


def test_every_problem_is_told_at_once() -> None:
    sentences = refusal("sampling.top_p=0.9", "algorithm.group_size=2", "task.env=chess").splitlines()
    assert len(sentences) == 3
    for field, sentence in zip(("task.env", "sampling.top_p", "algorithm.group_size"), sentences, strict=True):
        assert sentence.startswith(field)
