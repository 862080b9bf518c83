"""Figures: the numbers drawn are those of the records, and pictures of other numbers are stale."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from synthetic_runs import answers, step, update, write_run

from analysis.figures.paper import FIGURES, PAPER, profiles
from analysis.figures.runs import run_figure, training_figure
from analysis.load import experiment, groups, keep, load
from analysis.looks import FILE, LOOKS, read_looks, styles
from analysis.make_figures import main
from analysis.metrics import training_curve
from analysis.plots import is_stale, save
from analysis.stats import wilson
from rtpo.errors import ConfigError, DataError

VARIANTS = ("rtpo,lr=0.1", "rtpo,lr=0.2", "rtpo_clip_high", "rtpo_g4", "grpo_exact_lr0.001")


def write_curves(results: Path, label: str, task: str, kl: float = 0.1, count: int = 2) -> None:
    """A run of the main table at the paper's scale, with `count` steps."""
    steps = [step(place, 10 * place, 0.5, [update(10, kl, 0.5)]) for place in range(1, count + 1)]
    held_out = [*answers("before", "sampled", {"q": [0.0]}), *answers("after", "sampled", {"q": [1.0]}, count)]
    manifest, experiment = {"profile": PAPER, "task": task}, f"main_table_{PAPER}_{task}"
    write_run(results, label, 0, steps, held_out, manifest=manifest, experiment=experiment)


def test_the_committed_pictures_show_the_numbers_of_the_committed_records() -> None:
    """Of the reference runs, the toy main table and the study of when RTPO pays."""
    assert main(["--check"]) == 0


def test_tokens_a_path_are_those_of_all_its_pieces(tmp_path: Path) -> None:
    """A call samples the next piece of each path: three pieces of one turn and 5 tokens each."""
    call = {"rollouts": 4, "turns": 4, "generated_tokens": 20, "graded": 0, "terminations": {}, "success": None}
    steps = [step(place, 4 * place, None, [update(10, 0.1, 0.5)]) | {"rollout_calls": [call] * 3} for place in (1, 2)]
    write_run(tmp_path, "arpo", 0, steps, answers("after", "sampled", {"q": [1.0]}))
    curve = training_curve(experiment(tmp_path, "quickstart"))
    assert curve[["rollout_tokens", "turn_tokens"]].to_numpy().tolist() == [[15, 5], [15, 5]]


def test_at_the_papers_scale_lines_are_in_its_units_with_its_readings(tmp_path: Path) -> None:
    drifts, colours = {"grpo": 0.3, "seeupo_flat": 0.1}, {}
    for label, kl in drifts.items():
        colours[label] = styles([label])[label].colour
        for task in ("math_paper", "search_paper"):
            write_curves(tmp_path, label, task, kl)
    ((source,), _) = profiles(tmp_path)
    panels = FIGURES["consistency"](source).axes
    readings: list[Any] = []
    for axes in panels:
        hollow = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
        readings.append({(line.get_markeredgecolor(), *line.get_xydata()[0]) for line in hollow})
    grpo, seeupo = colours.values()
    knowledge = {(grpo, 1, 0.80), (grpo, 14, 0.83), (seeupo, 1, 0.80), (seeupo, 14, 0.89)}
    assert readings == [{(grpo, 1, 0.89), (grpo, 30, 0.97)}, knowledge, set(), set()]
    for label, kl in drifts.items():
        (line,) = [line for line in panels[2].lines if line.get_color() == colours[label]]
        assert line.get_ydata() == pytest.approx([kl, kl])
    tokens, hours, *_ = FIGURES["success"](source).axes
    assert max(x for line in tokens.lines for x in line.get_xdata()) == pytest.approx(800e-6)
    assert max(x for line in hours.lines for x in line.get_xdata()) == pytest.approx(0.2 / 3600)
    assert main(["--results", str(tmp_path), "--figure", "consistency"]) == 0
    assert len(list((tmp_path / "figures").iterdir())) == 2


def test_files_are_made_alike_each_time_and_are_stale_once_a_number_is_other(tmp_path: Path) -> None:
    values, files = [0.1, 0.2], [tmp_path / "picture.png", tmp_path / "picture.pdf"]

    def draw() -> Figure:
        figure = Figure()
        figure.subplots().plot(values)
        return figure

    assert is_stale(files[0], draw)
    made = []
    for _ in range(2):
        save(draw, files)
        made.append([file.read_bytes() for file in files])
    assert made[0] == made[1]
    assert not is_stale(files[0], draw)
    values[1] = 0.3
    assert is_stale(files[0], draw)


def test_a_method_has_its_colour_and_marker_whatever_its_label_and_lines_differ() -> None:
    alone = {label: styles([label])[label] for label in ("rtpo", "grpo_exact")}
    several = styles(["rtpo", "grpo_exact", "grpo", *VARIANTS])
    for label in (*alone, *VARIANTS):
        method = next(name for name in alone if label.startswith(name))
        assert (several[label].colour, several[label].marker) == (alone[method].colour, alone[method].marker)
    looks = [(look.colour, look.marker, look.line) for look in several.values()]
    assert len(set(looks)) == len(looks)
    assert len(set(map(str, LOOKS.values()))) == len(LOOKS)
    for method in ("arpo", "tree_grpo"):
        exact, flattened = (styles([label])[label] for label in (f"{method}_exact", method))
        assert (exact.colour, exact.marker) == (flattened.colour, flattened.marker)


def test_looks_with_an_unknown_name_are_refused_by_the_field() -> None:
    text = FILE.read_text(encoding="utf-8")
    for name, wrong, field in (
        ("rtpo: [blue", "rtpo: [bleu", "looks.rtpo"),
        ('[blue, "o", "-"]', '[blue, "o", "~"]', "looks.rtpo.2"),
        ("markers:", "marks:", "looks.yaml.markers"),
    ):
        assert text.count(name) == 1
        with pytest.raises(ConfigError, match=field):
            read_looks(text.replace(name, wrong))


def test_panels_of_one_point_are_left_out_and_a_batch_of_one_run_has_a_band(tmp_path: Path) -> None:
    held_out = [*answers("before", "sampled", {"q": [0.0]}), *answers("after", "sampled", {"q": [1.0]}, 1)]
    calls = [{"rollouts": 8, "graded": 8, "turns": 8, "generated_tokens": 8, "terminations": {}}]
    steps = [step(place, 10 * place, 0.5, [update(10, 0.1, 0.5)]) | {"rollout_calls": calls} for place in (1, 2)]
    write_run(tmp_path, "rtpo", 0, steps[:1], held_out)
    write_run(tmp_path, "rtpo", 0, steps[:1], [], experiment="short")
    write_run(tmp_path, "rtpo", 0, steps, held_out, experiment="long")
    (axes,) = training_figure(groups(experiment(tmp_path, "quickstart"))).axes
    assert axes.get_title().endswith("Success, %")
    with pytest.raises(DataError, match="rtpo-seed0"):
        training_figure(groups(experiment(tmp_path, "short")))
    keep(load(tmp_path / "long"), tmp_path / "lang")
    with pytest.raises(DataError, match="lang"):
        experiment(tmp_path, "langs")
    one_step = experiment(tmp_path, "quickstart")
    assert [axes.axison for axes in run_figure(one_step).axes] == [True] + 7 * [False]
    assert not any(axes.lines for axes in run_figure(one_step).axes[1:])
    write_curves(tmp_path, "grpo", "math_paper", count=1)
    with pytest.raises(DataError, match="single data step"):
        FIGURES["consistency"](profiles(tmp_path)[0][0])
    assert main(["--results", str(tmp_path)]) == 0
    write_curves(tmp_path, "grpo", "search_paper")
    assert len(FIGURES["consistency"](profiles(tmp_path)[0][0]).axes) == 2
    success, *_ = training_figure(groups(experiment(tmp_path, "long"))).axes
    (band,) = [each for each in success.collections if isinstance(each, PolyCollection)]
    low, high = wilson(0.5, 8)
    heights = np.asarray(band.get_paths()[0].vertices, float)[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((100 * low, 100 * high))
