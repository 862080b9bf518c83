"""Composition: every algorithm on every toy task, and a sentence with the fields' names for what cannot be."""

import re

import pytest
from conftest import compose_config
from trees import differences

from rtpo.engines.base import Sampling
from rtpo.envs.toy.math_problems import problems
from rtpo.errors import ConfigError, DataError
from rtpo.run.config import PROJECT, RunConfig, rollout_sampling
from rtpo.run.model_folder import check_model
from rtpo.run.tasks import check_splits

ALGORITHMS = sorted(path.stem for path in (PROJECT / "configs" / "algorithm").glob("*.yaml"))
TOY_TASKS = sorted(path.stem for path in (PROJECT / "configs" / "task").glob("toy_*.yaml"))


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose_config(*overrides)
    return str(caught.value)


def test_there_are_algorithms_and_tasks_to_compose() -> None:
    assert {"rtpo", "grpo", "grpo_exact"} <= set(ALGORITHMS)
    assert "toy_math" in TOY_TASKS


@pytest.mark.parametrize("task", TOY_TASKS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_composes_on_every_toy_task(algorithm: str, task: str) -> None:
    config = compose_config(f"algorithm={algorithm}", f"task={task}")
    assert isinstance(config, RunConfig)
    assert (config.label, config.task.name) == (algorithm, task)
    assert config.folder.name == f"{algorithm}-seed0"
    built = config.algorithm_config
    assert type(built) is config.descriptor.config
    assert config.descriptor.check(built) == []
    assert {name: getattr(built, name) for name in config.algorithm} == config.algorithm


def test_training_samples_from_the_whole_distribution() -> None:
    assert rollout_sampling(compose_config()) == Sampling(1.0, 1.0, -1)


@pytest.mark.parametrize("profile", ["a100x1", "a100x8", "h200x8"])
def test_a_large_model_is_saved_less_often(profile: str) -> None:
    large, small = (compose_config(f"profile={name}", "task=math_paper") for name in (profile, "toy"))
    assert large.save.every_steps > small.save.every_steps
    assert large.save.every_phases == 0


def test_an_override_changes_that_field_only() -> None:
    config = compose_config("algorithm.trunks=3", "save.keep=3").as_dict()
    assert list(differences(compose_config().as_dict(), config)) == ["algorithm.trunks", "save.keep"]


REFUSED = """
    algorithm.name=nosuch ~algorithm.label ~task.max_turns seed=??? algorithm.trunks=many algorithm.trunks=true
    seed=true budget.rollouts=false task.held_out.count=99999999999 algorithm.trunks=2.5 algorithm.pool_s0=perhaps
    budget.rollouts=lots algorithm.rollout_context=half profile.platform=tpu algorithm.group_size=2
    algorithm.group_size=1 algorithm.trunks=0 algorithm.training_context=flattened algorithm.clip_low=0
    algorithm.clip_low=1.5 algorithm.clip_high=-0.1 algorithm.kl=-0.1 algorithm.epochs=0 algorithm.minibatches=0
    sampling.temperature=0 sampling.temperature=-1 sampling.top_p=0.9 sampling.top_k=20 budget.rollouts=13
    budget.rollouts=-1 budget.generated_tokens=0 budget.optimizer_steps=-1 budget.seconds=0 save.every_phases=-1
    budget.tasks_per_step=0 task.train.count=15 task.max_turns=0 task.env=chess evaluation.samples=0 save.keep=0
    profile.processes=0 samples_per_rollout=-1 task.max_prompt_tokens=0 task.max_turn_tokens=0
    task.max_context_tokens=32 optimizer.lr=-1 optimizer.lr=0 optimizer.betas=[1,0.9] optimizer.betas=[0.9,-0.1]
    optimizer.weight_decay=-1 task.train.count=0 optimizer.clip_grad=0 profile.nodes=0 profile.engine_kl_limit=0
    profile.scored_share=0 profile.scored_share=1.1 profile.check_trees=1e-4 experiment_name=../x algorithm.label=a/b
"""


@pytest.mark.parametrize("override", REFUSED.split())
def test_what_cannot_be_is_refused_by_the_name_of_its_field(override: str) -> None:
    field = override.lstrip("+~").partition("=")[0]
    sentence = refusal(override)
    assert field in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("+algorithm.groupsize=3", "algorithm.groupsize is not a field of RTPOConfig: the nearest is group_size"),
        ("+budget.prompts=3", "budget.prompts is not a field of BudgetConfig: there are rollouts, tasks_per_step"),
        ("+optimizr.lr=3", "optimizr is not a field of RunConfig: the nearest is optimizer"),
        ("+task.settings.turns=3", "task.settings.turns is not a field of ToySettings: there are luck"),
        ("algorithm.group_size=2", "algorithm.group_size is 2"),
        ("budget.rollouts=13", "14 rollouts"),
        ("algorithm.trunks=true", "algorithm.trunks is true"),
        ("task.train.count=15", "budget.tasks_per_step is 16 and task.train.count 15"),
        ("optimizer.betas=[1,0.9]", "optimizer.betas.0 is 1"),
    ],
)
def test_a_refusal_says_what_there_is(override: str, words: str) -> None:
    assert words in refusal(override)


@pytest.mark.parametrize("value", ["first", "1.5", "null"])
def test_a_field_of_two_types_is_refused_once(value: str) -> None:
    sentence = refusal("algorithm=anchored_forks", f"algorithm.fork_turn={value}")
    assert sentence.startswith("algorithm.fork_turn is ")
    assert [word for word in ("int", "uniform", "estimated") if word not in sentence] == []
    assert "\n" not in sentence


def test_an_environment_without_settings_takes_none() -> None:
    assert "task.settings.turns is not a field of NoSettings: it has none." in refusal(
        "task=booking", "+task.settings.turns=3"
    )


@pytest.mark.parametrize(
    ("overrides", "field", "owner", "known"),
    [
        (("task=math", "+task.settings.python.cpu_secnds=1"), "python.cpu_secnds", "PythonSettings", "cpu_seconds"),
        (("task=search", "+task.settings.search.request.tries=1"), "search.request", "SearchSettings", "requests"),
        (
            ("task=search", "+task.settings.search.requests.triez=1"),
            "search.requests.triez",
            "RequestSettings",
            "tries",
        ),
        (("task=search", "+task.settings.reward.judge.at_onec=1"), "reward.judge.at_onec", "JudgeSettings", "at_once"),
        (
            ("task=airline", "budget.rollouts=99", "+task.settings.server.max_token=1"),
            "server.max_token",
            "ServerSettings",
            "max_tokens",
        ),
    ],
)
def test_settings_are_strict_at_every_depth(overrides: tuple[str, ...], field: str, owner: str, known: str) -> None:
    sentences = refusal("data=a.jsonl", *overrides).splitlines()
    assert f"task.settings.{field} is not a field of {owner}: the nearest is {known}." in sentences


@pytest.mark.parametrize(
    ("overrides", "field", "value"),
    [
        ((), "optimizer.lr", "nan"),
        ((), "optimizer.lr", "inf"),
        ((), "algorithm.kl", "nan"),
        ((), "sampling.temperature", "-inf"),
        ((), "budget.seconds", "inf"),
        ((), "budget.rollouts", "99999999999999999999999"),
        ((), "seed", "9007199254740993"),
        ((), "+verl.trainer.x.y", "[nan]"),
        ((), "+verl.z", "9007199254740993"),
        (("task=math", "data=a.jsonl"), "+task.settings.python.wall_seconds", "nan"),
        (("task=search", "data=a.jsonl"), "+task.settings.search.requests.per_second", "inf"),
    ],
)
def test_numbers_are_finite_and_not_too_large_at_every_depth(
    overrides: tuple[str, ...], field: str, value: str
) -> None:
    sentence = refusal(*overrides, f"{field}={value}")
    assert re.match(rf"{re.escape(field.lstrip('+'))}(\.0)? is {value.strip('[]')}: ", sentence)
    assert "\n" not in sentence


VERL = "verl.actor_rollout_ref"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("+model.lora_rank=8",), ["model.lora_rank is 8", "LoRA is not supported"]),
        (("+model.lora.rank=8", "+model.lora.merge=true"), ["model.lora.rank is 8", "LoRA is not supported"]),
        (("+model.lora_adapter_path=x",), ["model.lora_adapter_path is x", "LoRA is not supported"]),
        (("actor.optim.lr=1",), ["actor.optim.lr is 1 and optimizer.lr", "set optimizer.lr alone"]),
        (("+actor.optim.min_lr_ratio=2",), ["actor.optim.min_lr_ratio is 2", "from 0 to 1"]),
        (("actor.optim=3",), ["actor.optim is 3"]),
        (("actor.strategy=megatron",), ["actor.strategy is megatron", "use fsdp2"]),
        (("rollout.name=sglang",), ["rollout.name is sglang", "use "]),
        (("+actor.optim.lr_scheduler_type=cosine",), ["lr_scheduler_type is cosine", "set budget.optimizer_steps"]),
        (("+actor.optim.warmup_style=cosine",), ["warmup_style is cosine", "set budget.optimizer_steps"]),
        (("+actor.optim.lr_warmup_steps_ratio=.1",), ["lr_warmup_steps_ratio is 0.1", "set budget.optimizer_steps"]),
    ],
)
@pytest.mark.parametrize("profile", ["toy", "a100x8"])
def test_what_verl_takes_and_this_project_does_not_do_is_refused(
    overrides: tuple[str, ...], words: list[str], profile: str
) -> None:
    given = [f"{'+' * one.startswith('+')}{VERL}.{one.lstrip('+')}" for one in overrides]
    sentence = refusal(f"profile={profile}", *given).splitlines()[0]
    assert [word for word in words if word not in sentence] == []


def test_a_schedule_is_as_long_as_the_run() -> None:
    schedule = f"+{VERL}.actor.optim.lr_scheduler_type=cosine"
    run = compose_config(schedule, "budget.optimizer_steps=70")
    assert run.verl["actor_rollout_ref"]["actor"]["optim"]["total_training_steps"] == 70
    assert "total_training_steps 60" in refusal(
        schedule, "budget.optimizer_steps=70", f"{VERL}.actor.optim.total_training_steps=60"
    )


@pytest.mark.parametrize("override", ["budget.seconds=60", "profile=a100x8"])
def test_a_deterministic_run_depends_on_no_clock_and_no_vllm(override: str) -> None:
    compose_config(override)
    assert "deterministic is true" in refusal("deterministic=true", override)


def test_log_probs_that_the_engine_cannot_give_are_refused() -> None:
    model = compose_config("algorithm=arpo", "algorithm.top_logprobs=204").model.path
    check_model(model, 204)
    with pytest.raises(ConfigError, match=r"algorithm\.top_logprobs is 205 .* 204 tokens"):
        check_model(model, 205)
    most = "verl.actor_rollout_ref.rollout.engine_kwargs.vllm.max_logprobs"
    assert compose_config("algorithm=arpo", "profile=a100x8").top_logprobs == 10
    compose_config("algorithm=arpo", "profile=a100x8", "algorithm.top_logprobs=30", f"{most}=30")
    compose_config("algorithm=arpo", "profile=a100x8", "algorithm.top_logprobs=30", f"{most}=-1")
    sentence = refusal("algorithm=arpo", "profile=a100x8", "algorithm.top_logprobs=30")
    assert "algorithm.top_logprobs is 30" in sentence
    assert f"raise {most}" in sentence


def test_skipped_synchronisations_are_refused_where_the_engine_sleeps_between_them() -> None:
    free = "verl.actor_rollout_ref.rollout.free_cache_engine"
    sentence = refusal("algorithm=rtpo_sync_kl", "profile=a100x8")
    assert "algorithm.sync_kl is 0.01" in sentence
    assert free in sentence
    compose_config("algorithm=rtpo_sync_kl", "profile=a100x8", f"{free}=false")
    compose_config("algorithm=rtpo_sync_2", "profile=a100x8")


@pytest.mark.parametrize(("name", "value"), [("logprobs_mode", "raw_logprobs"), ("name", "sglang")])
def test_an_engine_whose_log_probs_are_not_known_to_be_the_tokens_is_refused(name: str, value: str) -> None:
    setting = f"verl.actor_rollout_ref.rollout.{name}"
    assert f"{setting} is {value}" in refusal("profile=a100x8", f"{setting}={value}")


def test_a_dual_clip_that_would_change_the_objective_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.dual_clip is 0\.5"):
        compose_config("algorithm=grpo", "algorithm.dual_clip=0.5")


@pytest.mark.parametrize("override", ["profile.track=tensorboard", "profile.track=null", "optimizer.betas=1"])
def test_a_word_for_a_list_is_refused(override: str) -> None:
    assert refusal(override).startswith(f"{override.split('=')[0]} is ")


def test_a_problem_both_trained_and_evaluated_on_is_refused() -> None:
    train, held_out = problems("train", 5, seed=0), problems("held_out", 5, seed=0)
    check_splits("toy_math", train, held_out, tasks_per_step=5)
    with pytest.raises(DataError, match=r"share 1 problem"):
        check_splits("toy_math", train, [*held_out, train[2]], tasks_per_step=5)
    with pytest.raises(DataError, match=r"task\.train has 5"):
        check_splits("toy_math", train, held_out, tasks_per_step=6)


@pytest.mark.parametrize("override", ["algorithm.chains=1", "algorithm.old_logprobs=guess", "+algorithm.trunks=4"])
def test_fields_of_grpo_are_checked_as_its_own(override: str) -> None:
    field = override.lstrip("+").split("=")[0]
    assert field in refusal("algorithm=grpo", override)


def test_the_least_budget_that_fits_a_task_is_taken() -> None:
    assert compose_config("budget.rollouts=28").budget.rollouts == 28
    assert compose_config("algorithm=grpo", "budget.rollouts=16").budget.rollouts == 16
    assert "16 rollouts" in refusal("algorithm=grpo", "budget.rollouts=15")


def test_a_data_file_that_the_task_does_not_read_is_refused() -> None:
    assert "data is a.jsonl and task.train.file" in refusal("data=a.jsonl", "task=math_paper")
    assert compose_config("task=math", "data=a.jsonl").task.train.file == "a.jsonl"


def test_every_problem_is_told_at_once() -> None:
    sentences = refusal("sampling.top_p=0.9", "algorithm.group_size=2", "task.env=chess").splitlines()
    assert len(sentences) == 3
    for field, sentence in zip(("task.env", "sampling.top_p", "algorithm.group_size"), sentences, strict=True):
        assert sentence.startswith(field)
