"""The commands a user types: what they run, and how they end."""

import importlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from analysis import make_figures, make_tables
from experiments import quickstart
from experiments import train as train_command
from rtpo.errors import MachineError, Stopped
from rtpo.run.cli import command, on_sigterm
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
        (
            "train",
            ["budget.rolouts=5"],
            "The nearest is budget.rollouts.",
        ),
        ("train", ["algorithm={a:1}"], "Could not override 'algorithm'"),
        ("train", ["--cgf", "job"], "unrecognized argument --cgf"),
        ("train", ["model.path=rtpo/toy/warm_start_mat"], "rtpo/toy/warm_start_math. Give"),
        (
            "train",
            ["experiment=ablate_kl", "task=toy_math"],
            "experiment is ablate_kl, which varies algorithm=rtpo, seed=0,1,2, algorithm.kl=0,0.001: name one",
        ),
        ("evaluate", ["benchmark=[gsm8k]"], "The nearest is benchmarks."),
        ("evaluate", ["benchmarks=[math50]"], "In configs/benchmarks, the nearest is math500."),
        ("launch", ["runn", "main_table"], "invalid choice: 'runn'"),
        ("quickstart", ["sed=3"], "The nearest is seed."),
        ("export", ["results/refrence", "x"], "there is no results/refrence; the nearest is results/reference"),
        ("export", ["{loop}", "x"], "{loop} is a link to loop"),
        ("plan", ["main_tabel"], "the nearest is main_table."),
        ("bench", ["--repaets", "1"], "unrecognized arguments: --repaets"),
    ],
)
def test_what_is_mistyped_is_answered_with_the_nearest(
    command: str, arguments: list[str], words: str, tmp_path: Path
) -> None:
    (loop := tmp_path / "loop").symlink_to("loop")
    given = [argument.replace("{loop}", str(loop)) for argument in arguments]
    assert words.replace("{loop}", str(loop)) in refused(command, *given)


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
    overrides = [f"results={tmp_path}", "seed=3", "optimizer.lr=0.1"]
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
    assert (config.seed, config.label) == (3, {"train": "rtpo,lr=0.1", "quickstart": "rtpo"}[command])


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_that_a_library_turned_into_ctrl_c_keeps_its_name(
    number: signal.Signals, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    @command
    def stopped() -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None

    before = signal.signal(signal.SIGTERM, on_sigterm)
    try:
        assert stopped() == status
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ("SIGTERM" in capsys.readouterr().err) == (status == 143)


def test_a_run_named_after_its_fields_is_a_checkpoint_as_it_is_typed(tmp_path: Path) -> None:
    (folder := tmp_path / "rtpo,lr=0.0002-seed0").mkdir()
    assert str(folder) in refused("evaluate", f"checkpoint={folder}", "benchmarks=[toy_math]")


@pytest.mark.parametrize("command", ["experiments.train", "experiments.evaluate"])
def test_configurations_are_found_from_any_folder(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else these commands would refuse all rows above for want of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [command, "--cfg", "job"])
    assert importlib.import_module(command).main() == 0


def test_tables_and_figures_of_other_records_leave_those_of_the_project_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a project's folder, with records elsewhere: an empty folder gives tables without any run."""
    kept = [
        tmp_path / "results/tables/paper/kept.md",
        tmp_path / "docs/results/tables.md",
        tmp_path / "results/figures/kept.pdf",
    ]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("kept\n")
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    for main in (make_tables.main, make_figures.main):
        assert main(["--results", "other"]) == 0
    written = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert {path for path in written if not path.is_relative_to(other)} == set(kept)
    assert [path.read_text() for path in kept] == ["kept\n"] * 3
    assert other / "tables" / "paper" / "supp_budget.md" in written
