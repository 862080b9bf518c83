"""Figures: the numbers drawn are those of the records, and pictures of other numbers are stale."""

import json
from pathlib import Path
from typing import Any

import pytest
import synthetic_runs
from matplotlib.figure import Figure
from synthetic_runs import answers, step, write_manifest, write_run

from analysis.figures.paper import FIGURES, PAPER, profiles
from analysis.figures.runs import training_figure
from analysis.load import experiment, groups
from analysis.looks import styles
from analysis.make_figures import main
from analysis.plots import is_stale, save


def write_curves(results: Path, label: str, profile: str = "toy", task: str = "toy_math", kl: float = 0.1) -> Path:
    """A run of the main table with two steps."""
    steps = [step(place, 10 * place, 0.5, [synthetic_runs.update(10, kl, 0.5)]) for place in (1, 2)]
    held_out = [*answers("before", "sampled", {"q": [0.0]}), *answers("after", "sampled", {"q": [1.0]}, 2)]
    manifest, place = {"profile": profile, "task": task}, f"main_table_{profile}_{task}"
    return write_run(results, label, 0, steps, held_out, manifest=manifest, experiment=place)


def test_the_committed_pictures_show_the_numbers_of_the_committed_records() -> None:
    """Of the reference runs, the toy study, the study of when RTPO pays, the theorems and the map."""
    assert main(["--check"]) == 0


@pytest.mark.parametrize("profile", ["toy", PAPER])
def test_the_papers_readings_are_marked_at_its_own_scale_alone(tmp_path: Path, profile: str) -> None:
    for task in ("math_paper", "search_paper") if profile == PAPER else ("toy_math", "toy_knowledge"):
        for label in ("grpo", "seeupo_flat"):
            write_curves(tmp_path, label, profile, task)
    (source,) = [source for source in profiles(tmp_path) if source.profile == profile]
    readings: list[Any] = [
        sorted(
            (line.get_markeredgecolor(), *line.get_xydata()[0])
            for line in axes.lines
            if line.get_markerfacecolor() == "none"
        )
        for axes in FIGURES["consistency"](source).axes
    ]
    grpo, seeupo = (styles([label])[label].colour for label in ("grpo", "seeupo_flat"))
    math = [(grpo, 1, 0.89), (grpo, 30, 0.97)]
    knowledge = sorted([(grpo, 1, 0.80), (grpo, 14, 0.83), (seeupo, 1, 0.80), (seeupo, 14, 0.89)])
    assert readings == ([math, knowledge, [], []] if profile == PAPER else [[]] * 4)


def test_files_are_made_alike_each_time(tmp_path: Path) -> None:
    write_curves(tmp_path, "rtpo")
    made = []
    for _ in range(2):
        assert main(["--results", str(tmp_path), "--figure", "consistency"]) == 0
        made.append({path.suffix: path.read_bytes() for path in (tmp_path / "figures").iterdir()})
    assert made[0] == made[1]
    assert (made[0][".pdf"][:4], made[0][".png"][1:4]) == (b"%PDF", b"PNG")


def test_a_picture_is_stale_once_a_number_of_its_records_is_other(tmp_path: Path) -> None:
    folder, picture = write_curves(tmp_path, "rtpo"), tmp_path / "picture.png"

    def draw() -> Figure:
        return training_figure(groups(experiment(tmp_path, folder.parent.name)))

    assert is_stale(picture, draw)
    save(draw, [picture])
    assert not is_stale(picture, draw)
    lines = (folder / "steps.jsonl").read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {"success": 0.123})
    (folder / "steps.jsonl").write_text("\n".join(lines) + "\n")
    write_manifest(folder, json.loads((folder / "manifest.json").read_text()))
    assert is_stale(picture, draw)


def test_nothing_to_draw_is_refused_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started = write_run(tmp_path, "rtpo", 0, [], [], complete=False, experiment="started")
    rows = {
        "startde": ["--experiment", "startde"],
        "rtpo-seed0": ["--run", str(started.parent)],
        str(started): ["--run", str(started)],
        "toy_study": ["--figure", "consistency"],
    }
    for named, row in rows.items():
        assert main(["--results", str(tmp_path), *row]) == 1
        assert named in "".join(capsys.readouterr())
    assert not (tmp_path / "figures").exists()


def test_a_line_is_its_configurations_in_the_units_of_its_axis(tmp_path: Path) -> None:
    drifts = {"rtpo": 0.1, "grpo": 0.3}
    for label, kl in drifts.items():
        write_curves(tmp_path, label, PAPER, "math_paper", kl)
    source = profiles(tmp_path)[0]
    _, panel = FIGURES["consistency"](source).axes
    for label, kl in drifts.items():
        (line,) = [line for line in panel.lines if line.get_color() == styles([label])[label].colour]
        assert line.get_ydata() == pytest.approx([kl, kl])
    tokens, hours = FIGURES["success"](source).axes
    assert max(x for line in tokens.lines for x in line.get_xdata()) == pytest.approx(800e-6)
    assert max(x for line in hours.lines for x in line.get_xdata()) == pytest.approx(0.2 / 3600)
