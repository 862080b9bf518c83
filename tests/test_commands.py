"""The commands a user types: what they run, and how they end."""

import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from experiments import quickstart
from experiments import train as train_command
from rtpo.errors import MachineError, Stopped
from rtpo.run.config import PROJECT


def test_the_quickstart_runs_differ_in_their_algorithm_alone() -> None:
    runs = [config.as_dict() for config in quickstart.configurations([])]
    assert [run["algorithm"]["label"] for run in runs] == ["rtpo", "grpo", "grpo_exact"]
    for one in runs:
        for other in runs:
            differing = {name for name in one if one[name] != other[name]}
            assert differing == (set() if one is other else {"algorithm"})
    assert {run["experiment_name"] for run in runs} == {"quickstart"}
    assert len({config.folder for config in quickstart.configurations([])}) == 3


def test_the_quickstarts_overrides_reach_all_its_runs() -> None:
    assert [config.seed for config in quickstart.configurations(["seed=7"])] == [7, 7, 7]


def test_a_setting_that_cannot_be_ends_with_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, str(PROJECT / "experiments" / "train.py"), "results=.", "algorithm.group_size=2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("error: algorithm.group_size is 2: ")
    assert sentence.endswith(".")
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def refused(command: str, *arguments: str) -> str:
    """The one line that the command ends with."""
    script = [sys.executable, str(PROJECT / "experiments" / f"{command}.py"), *arguments]
    done = subprocess.run(script, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    return sentence


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("train", ["budget.rolouts=5"], "budget.rolouts is no field of a run: the nearest is budget.rollouts;"),
        ("train", ["--cgf", "job"], "'--cgf' cannot be given; the nearest is --cfg"),
        ("train", ["model.path=rtpo/toy/warm_start_mat"], "rtpo/toy/warm_start_math. Give"),
        (
            "train",
            ["experiment=ablate_kl", "task=toy_math"],
            "experiment is ablate_kl, which varies algorithm=rtpo, seed=0,1,2, algorithm.kl=0,0.001: name one",
        ),
        ("evaluate", ["benchmark=[gsm8k]"], "benchmark is no field of an evaluation: the nearest is benchmarks;"),
        ("evaluate", ["benchmarks=[math50]"], "no such file in configs/benchmarks/; the nearest is math500."),
        ("launch", ["runn", "main_table"], "'runn' cannot be given; the nearest is run "),
        ("quickstart", ["sed=3"], "the nearest is seed;"),
        ("export", ["results/refrence", "x"], "there is no results/refrence; the nearest is results/reference"),
        ("plan", ["main_tabel"], "the nearest is main_table."),
        ("plan", ["drift", "--hardwear", "x"], "'--hardwear' cannot be given; the nearest is --hardware"),
    ],
)
def test_what_is_mistyped_is_answered_with_the_nearest(command: str, arguments: list[str], words: str) -> None:
    assert words in refused(command, *arguments)


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (Stopped("stopped by SIGTERM and saved."), 75, "stopped by SIGTERM and saved.\n"),
        (MachineError("the disk is full."), 1, "error: the disk is full.\n"),
    ],
)
@pytest.mark.parametrize("command", ["train", "quickstart"])
def test_exit_statuses(
    command: str,
    error: Exception,
    status: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started = []

    def train(config: Any, stop: Any) -> NoReturn:
        started.append(config)
        raise error

    monkeypatch.chdir(tmp_path)
    overrides = [f"results={tmp_path}", "seed=3"]
    if command == "train":
        monkeypatch.setattr(train_command, "train", train)
        monkeypatch.setattr(sys, "argv", ["train.py", "--config-path", str(PROJECT / "configs"), *overrides])
        with pytest.raises(SystemExit) as ended:
            train_command.main()
        assert ended.value.code == status
    else:
        monkeypatch.setattr(quickstart, "train", train)
        assert quickstart.main(overrides) == status
    assert capsys.readouterr().err == words
    (config,) = started
    assert (config.seed, config.label) == (3, "rtpo")
