"""Figures: the numbers drawn are those of the records, and pictures of other numbers are stale."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from paper_runs import update, write_paper_run
from synthetic_runs import write_manifest, write_run

from analysis import metrics
from analysis.figures.paper import FIGURES, PAPER, profiles
from analysis.figures.runs import training_figure
from analysis.load import experiment, groups
from analysis.looks import styles
from analysis.make_figures import main
from analysis.plots import STYLE, is_stale, save
from rtpo.run.config import PROJECT


def in_style(draw: Callable[[], Figure]) -> Figure:
    with matplotlib.style.context(STYLE):
        return draw()


def drawn(results: Path, name: str, profile: str = "toy") -> Figure:
    (source,) = [source for source in profiles(results) if source.profile == profile]
    return in_style(partial(FIGURES[name], source))


def points(*pairs: tuple[float, float]) -> Any:
    return pytest.approx(np.array(pairs))


def plotted(axes: Axes, label: str) -> np.ndarray:
    """The points of a configuration's line, [points, 2]."""
    look = styles([label])[label]
    (line,) = (
        line
        for line in axes.lines
        if (line.get_color(), line.get_marker()) == (look.colour, look.marker) and line.get_markerfacecolor() != "none"
    )
    return np.asarray(line.get_xydata())


def ends(axes: Axes) -> np.ndarray:
    """Low and high at each x of the panel's only band."""
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    by_x = {float(x): [float(y) for place, y in corners if place == x] for x in sorted(set(corners[:, 0]))}
    return np.array([(min(values), max(values)) for values in by_x.values()])


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


# figures of the paper


def test_ratio_and_kl_are_means_over_seeds_of_each_step(tmp_path: Path) -> None:
    for seed, kl in ((0, (0.2, 0.1)), (1, (0.4, 0.3, 0.2))):
        write_paper_run(tmp_path, "main_table", "grpo", seed, updates=[[update(value)] for value in kl])
    figure = drawn(tmp_path, "consistency")
    ratio, kl_panel = figure.axes
    assert plotted(kl_panel, "grpo") == points((1, 0.3), (2, 0.2))
    assert plotted(ratio, "grpo")[:, 1] == pytest.approx(np.exp([[-0.2, -0.1], [-0.4, -0.3]]).mean(axis=0))
    assert ends(kl_panel) == points((0.2, 0.4), (0.1, 0.3))
    assert "range over seeds" in legend(figure)


def test_the_papers_readings_are_marked_at_its_own_scale_alone(tmp_path: Path) -> None:
    readings = {}
    for profile in ("toy", PAPER):
        tasks = ("math_paper", "search_paper") if profile == PAPER else ("toy_math", "toy_knowledge")
        for task, label in [(task, label) for task in tasks for label in ("grpo", "seeupo_flat")]:
            write_paper_run(tmp_path, "main_table", label, profile=profile, task=task)
        readings[profile] = [
            sorted((line.get_markeredgecolor(), *line.get_xydata()[0]) for line in axes.lines if is_hollow(line))
            for axes in drawn(tmp_path, "consistency", profile).axes
        ]
    grpo, seeupo = (styles([label])[label].colour for label in ("grpo", "seeupo_flat"))
    math, knowledge, *kl = readings[PAPER]
    assert kl == [[], []]
    assert math == [(grpo, 1, 0.89), (grpo, 30, 0.97)]
    assert knowledge == sorted([(grpo, 1, 0.80), (grpo, 14, 0.83), (seeupo, 1, 0.80), (seeupo, 14, 0.89)])
    assert readings["toy"] == [[]] * 4


def is_hollow(line: Any) -> bool:
    return bool(line.get_markerfacecolor() == "none")


def test_a_turn_has_its_ratio_and_the_part_of_its_mismatch_that_is_the_engines(tmp_path: Path) -> None:
    steps = [[update(0.3, (1,), context=0.1), update(0.0, (0,))], [update(0.5, (1,), context=0.3)]]
    write_paper_run(tmp_path, "main_table", "grpo", updates=steps)
    ratio, engine = drawn(tmp_path, "mismatch_by_turn").axes
    assert plotted(ratio, "grpo") == points((0, 1.0), (1, np.exp(-0.4)))
    assert plotted(engine, "grpo")[1, 1] == pytest.approx(0.2)


@pytest.mark.parametrize(("profile", "unit"), [("toy", (1e-3, 1.0)), (PAPER, (1e-6, 1 / 3600))])
def test_success_stands_at_what_it_cost(tmp_path: Path, profile: str, unit: tuple[float, float]) -> None:
    task = "toy_math" if profile == "toy" else "math_paper"
    settings: dict[str, Any] = {"updates": [[update(0.0)]] * 5, "rewards": (1.0, 1.0, 1.0, 0.0)}
    write_paper_run(tmp_path, "main_table", "rtpo", profile=profile, task=task, **settings)
    tokens, seconds = drawn(tmp_path, "success", profile).axes
    assert plotted(tokens, "rtpo") == points((0, 0), (2000 * unit[0], 75))
    assert plotted(seconds, "rtpo") == points((0, 0), (0.5 * unit[1], 75))


# curves of an experiment, and of one run


def test_the_curves_of_the_reference_runs_are_those_of_the_frames() -> None:
    configurations = groups(experiment(PROJECT / "results", "reference"))
    success, ratio, kl = in_style(partial(training_figure, configurations)).axes
    for label, frames in configurations.items():
        for panel, column in ((ratio, "ratio"), (kl, "kl")):
            curve = metrics.curve_over_runs(frames, column)
            assert plotted(panel, label) == pytest.approx(curve[["x", "mean"]].to_numpy())
        marks = [line for line in success.lines if line.get_linestyle() == "None"]
        (mark,) = (line for line in marks if line.get_color() == styles([label])[label].colour)
        assert mark.get_ydata() == pytest.approx(100 * metrics.held_out_curve(frames)["mean"].to_numpy())


# the command, and pictures that are stale


def run(results: Path, *arguments: str) -> int:
    return main(["--results", str(results), "--output", str(results / "figures"), *arguments])


@pytest.mark.parametrize("kind", ["--experiment", "--run", "--figure"])
def test_files_are_made_alike_each_time(tmp_path: Path, kind: str) -> None:
    folder = write_paper_run(tmp_path, "main_table", "rtpo")
    value = {"--experiment": folder.parent.name, "--run": str(folder), "--figure": "consistency"}[kind]
    made = []
    for _ in range(2):
        assert run(tmp_path, kind, value) == 0
        made.append({path.name: path.read_bytes() for path in (tmp_path / "figures").iterdir()})
    assert made[0] == made[1]
    pdf, png = (made[0][name] for name in sorted(made[0], key=lambda name: name.endswith("png")))
    assert (pdf[:4], png[1:4]) == (b"%PDF", b"PNG")


def test_a_picture_is_stale_once_a_number_of_its_records_is_other(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"

    def draw() -> Figure:
        return training_figure(groups(experiment(tmp_path, folder.parent.name)))

    folder = write_paper_run(tmp_path, "main_table", "rtpo", updates=[[update(0.0)]] * 2)
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
        assert run(tmp_path, *row) == 1
        assert named in "".join(capsys.readouterr())
    assert not (tmp_path / "figures").exists()
