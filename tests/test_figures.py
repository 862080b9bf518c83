"""Curves of runs: what is drawn of an experiment and of one run, and that it is drawn twice alike."""

from pathlib import Path

import matplotlib.style
import numpy as np
import pytest
from matplotlib.figure import Figure
from synthetic_runs import answers, empty_update, step, update, write_realistic_run, write_run

from analysis import measures
from analysis.figures.runs import run_figure, training_figure
from analysis.looks import styles
from analysis.make_figures import main
from analysis.plots import STYLE
from analysis.records import complete_groups, load_begun
from rtpo.run.records import JOURNAL


def draw(results: Path) -> Figure:
    with matplotlib.style.context(STYLE):
        return training_figure(complete_groups(results, "quickstart"))


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_files_are_made_and_made_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in ("rtpo", "grpo", "grpo_exact"):
        write_realistic_run(tmp_path, label, 0, questions=40)
    made = []
    for output in (tmp_path / "first", tmp_path / "second"):
        assert main(["--results", str(tmp_path), "--experiment", "quickstart", "--output", str(output)]) == 0
        made.append([path.read_bytes() for path in sorted(output.iterdir())])
    pdf, png = made[0]
    assert made[0] == made[1]
    assert pdf.startswith(b"%PDF")
    assert png.startswith(b"\x89PNG")
    assert min(len(pdf), len(png)) > 10_000
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"{tmp_path}/first/quickstart_training.{suffix}" for suffix in ("pdf", "png")
    ]


def test_equal_curves_stay_inside_the_panel_and_apart(tmp_path: Path) -> None:
    for label in ("rtpo", "grpo_exact"):
        write_realistic_run(tmp_path, label, 0, questions=40)
    figure = draw(tmp_path)
    for axes, matched in zip(figure.axes[1:], (1.0, 0.0), strict=True):
        low, high = axes.get_ylim()
        assert low < matched - 0.01 < matched + 0.01 < high
        rtpo, exact = (line for line in axes.lines if line.get_marker() != "None")
        assert np.allclose(rtpo.get_ydata(), matched, atol=1e-4)
        assert len({rtpo.get_color(), exact.get_color()}) == len({rtpo.get_marker(), exact.get_marker()}) == 2
        assert rtpo.get_linestyle() != exact.get_linestyle()
        assert rtpo.get_linewidth() > exact.get_linewidth()
        assert rtpo.get_markevery() != exact.get_markevery()
    success = figure.axes[0]
    assert success.get_ylim()[0] < 0 <= success.dataLim.y1 < success.get_ylim()[1]
    held_out = [line for line in success.lines if line.get_linestyle() == "None"]
    places = [np.asarray(line.get_xdata()) for line in held_out]
    assert not set(places[0]) & set(places[1])
    for group, x in zip(complete_groups(tmp_path, "quickstart"), places, strict=True):
        end = group.first.steps[-1]["rollouts"]
        assert max(abs(x[0]), abs(x[-1] - end)) < 0.02 * end


def test_bands_and_legend_say_how_many_seeds(tmp_path: Path) -> None:
    write_realistic_run(tmp_path, "rtpo", 0, questions=40)
    one = draw(tmp_path)
    assert legend(one) == ["RTPO", "(a) training batches", "(a) held-out, 95 % interval"]
    assert [len(axes.collections) for axes in one.axes[1:]] == [0, 0]
    for seed in (1, 2):
        write_realistic_run(tmp_path, "rtpo", seed, questions=40)
    three = draw(tmp_path)
    assert "range over seeds" in legend(three)
    assert [len(axes.collections) for axes in three.axes[1:]] == [1, 1]
    under = three.get_supxlabel().replace("\n", " ")
    assert under.startswith("quickstart; profile toy; seeds: 3. Toy-scale runs, not the paper's results. ")
    assert "Training: sampled at an unknown temperature; held out: at temperature 1." in under


def test_what_stands_under_the_panels_stays_inside_the_figure(tmp_path: Path) -> None:
    write_realistic_run(tmp_path, "rtpo", 0, questions=40)
    figure = draw(tmp_path)
    assert "other seeds unknown" in figure.get_supxlabel()
    figure.draw_without_rendering()
    (under,) = (text for text in figure.texts if text.get_text() == figure.get_supxlabel())
    place = under.get_window_extent()
    assert 0 <= place.x0 < place.x1 <= figure.bbox.x1
    assert place.y0 >= 0


def test_the_legend_reads_row_by_row(tmp_path: Path) -> None:
    for label in ("rtpo", "grpo", "grpo_exact", "other"):
        write_realistic_run(tmp_path, label, 0, questions=40)
    by_column = legend(draw(tmp_path))
    assert by_column[0::2] == [styles([label])[label].title for label in ("rtpo", "grpo", "grpo_exact")]
    assert by_column[1::2] == ["other", "(a) training batches", "(a) held-out, 95 % interval"]


def test_a_step_is_the_token_mean_of_its_updates(tmp_path: Path) -> None:
    steps = [
        step(1, 28, 0.5, [update(30, 0.1, 0.5), update(10, 0.5, 1.0)]),
        step(2, 56, None, [empty_update()]),
        step(3, 84, 0.25, [update(5, 0.0, 0.0)]),
    ]
    write_run(tmp_path, "rtpo", 0, steps, answers("after", "sampled", {"a": [1.0], "b": [0.0]}))
    (group,) = complete_groups(tmp_path, "quickstart")
    curve = measures.training_curve(group.first)
    assert curve["kl_k1"].tolist() == pytest.approx([0.2, float("nan"), 0.0], nan_ok=True)
    assert curve["ratio_gm"].tolist() == pytest.approx([np.exp(-0.2), float("nan"), 1.0], nan_ok=True)
    assert curve["zero_advantage"].tolist() == pytest.approx([0.75, float("nan"), 0.0], nan_ok=True)
    assert curve["rollouts"].tolist() == [0, 28, 56]
    assert measures.curve_over_runs(group, "kl_k1")["x"].tolist() == [0, 56]


def test_seeds_meet_at_common_rollouts(tmp_path: Path) -> None:
    for seed, charged in ((0, (20, 60, 100)), (1, (40, 80, 120))):
        # nothing was graded in the first step
        success = [None, *(n / 100 for n in charged)]
        steps = [step(i + 1, n, success[i], [update(1, 0.0, 0.0)]) for i, n in enumerate((*charged, 140))]
        write_run(tmp_path, "rtpo", seed, steps, answers("after", "sampled", {"a": [1.0]}))
    (group,) = complete_groups(tmp_path, "quickstart")
    curve = measures.curve_over_runs(group, "success")
    assert curve["x"].tolist() == [40, 70, 100]
    assert curve["mean"].tolist() == pytest.approx([0.4, 0.7, 1.0])


def test_a_last_step_of_fewer_tasks_is_in_no_curve(tmp_path: Path) -> None:
    steps = [
        step(i, 10 * i, 0.5, [update(1, kl, 0.0)]) | {"tasks": tasks}
        for i, kl, tasks in ((1, 0.1, 4), (2, 0.3, 4), (3, 9.0, 1))
    ]
    write_run(tmp_path, "rtpo", 0, steps, answers("after", "sampled", {"a": [1.0]}, 3))
    (group,) = complete_groups(tmp_path, "quickstart")
    assert measures.curve_over_runs(group, "kl_k1")["mean"].tolist() == pytest.approx([0.1, 0.3])
    assert measures.mean_over_steps(group.first, "kl_k1") == pytest.approx(9.4 / 3)


SAMPLING = {"temperature": 0.9, "top_p": 0.95, "top_k": -1}
PHASES = {"evaluate": 1.0, "generate": 2.0, "save": 0.0}


def begun(results: Path) -> Path:
    """A run that goes on: of its third step half a line is written."""
    calls = [
        {"rollouts": 10, "turns": 20, "generated_tokens": 400},
        {"rollouts": 10, "turns": 10, "generated_tokens": 200},
    ]
    steps = [
        step(i, 10 * i, 0.5, [update(10, 0.1, 0.5) | {"entropy": 0.5 / i}])
        | {
            "mean_reward": 0.25 * i,
            "rollout_calls": calls,
            "seconds": {phase: i * time for phase, time in PHASES.items()},
        }
        for i in (1, 2)
    ]
    answered: dict[str, list[float | None]] = {"a": [1.0], "b": [0.0]}
    lines = [*answers("before", "sampled", answered), *answers("during", "sampled", answered, 3)]
    folder = write_run(results, "rtpo", 0, steps, lines, complete=False, config={"sampling": SAMPLING})
    with (folder / "steps.jsonl").open("a") as file:
        file.write('{"step": 3, "rollo')
    (folder / JOURNAL).write_text('{"charged": 25, "total": 25, "rollouts": 25}\n')
    return folder


def test_a_run_is_on_one_sheet_while_it_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = begun(tmp_path)
    with matplotlib.style.context(STYLE):
        figure = run_figure(load_begun(folder))
    drawn = {
        axes.get_title(loc="left")[4:]: [
            line.get_ydata().tolist()
            for line in axes.lines
            if len(line.get_xdata()) < 3 and line.get_marker() != "None"
        ]
        for axes in figure.axes
    }
    assert drawn["Mean reward"] == [[0.25, 0.5]]
    assert drawn["KL (k1), nats"][:2] == [pytest.approx([0.1, 0.1])] * 2
    assert drawn["Entropy, nats"] == [[0.5, 0.25]]
    assert drawn["Tokens sampled"] == [[30.0, 30.0], [20.0, 20.0]]
    assert drawn["Zero advantages, %"] == [[50.0, 50.0]]
    assert drawn["Seconds a step"] == [[2.0, 2.0], [1.0, 1.0]]
    assert drawn["Success, %"] == [[50.0]]
    assert len(drawn["Ratio, train / rollout"]) == 1
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["(h) generate", "(h) evaluate"]
    under = figure.get_supxlabel().replace("\n", " ")
    assert under.startswith("quickstart/rtpo-seed0; RTPO; profile toy; not finished: 2 steps, 25 of 1,024 rollouts. ")
    assert "Toy-scale runs, not the paper's results." in under
    assert "Training: sampled at temperature 0.9, top-p 0.95; held out: at temperature 1." in under
    given = ["--results", str(tmp_path), "--run", str(folder)]
    assert main(given) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/figures/quickstart_rtpo-seed0.{kind}" for kind in ("pdf", "png")
    ]


def test_an_old_finished_run_is_drawn_as_far_as_it_is_known(tmp_path: Path) -> None:
    figure = run_figure(load_begun(write_realistic_run(tmp_path, "rtpo", 0, questions=10)))
    assert [[text.get_text() for text in axes.texts] for axes in figure.axes if axes.texts] == [["not recorded"]] * 2
    assert "; finished: 14 steps" in figure.get_supxlabel()


def test_nothing_to_draw_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--results", str(tmp_path), "--output", str(tmp_path / "figures")]
    started = write_run(tmp_path, "rtpo", 0, [], [], complete=False, experiment="started")
    evaluated = tmp_path / "evaluated"
    evaluated.mkdir()
    (evaluated / "config.yaml").write_text("{}")
    for row, said in (
        (["--experiment", "startde"], "startde holds no complete run and none that began: of experiments with some,"),
        (["--experiment", "started"], "started holds no complete run (incomplete: rtpo-seed0). Finish one by"),
        (["--run", str(tmp_path)], "is no run's folder: give that of one of its runs, evaluated."),
        (["--run", str(started.parent)], "is no run's folder: give that of one of its runs, rtpo-seed0."),
        (["--run", str(started.with_name("rtop-seed0"))], "is no run's folder; the nearest is rtpo-seed0: give one"),
        (["--run", str(evaluated)], "which is no run's"),
        (["--run", str(started)], "has no finished step yet"),
    ):
        assert main([*given, *row]) == 1
        assert said in capsys.readouterr().err
    assert not (tmp_path / "figures").exists()
