"""Figures: what is drawn, and that it is drawn twice alike."""

from pathlib import Path

import matplotlib.style
import numpy as np
import pytest
from matplotlib.figure import Figure
from synthetic_runs import answers, empty_update, step, update, write_realistic_run, write_run

from analysis import measures
from analysis.experiment import training_figure
from analysis.looks import styles
from analysis.make_figures import main
from analysis.plots import STYLE
from analysis.records import complete_groups


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


def test_the_success_panel_holds_all_intervals(tmp_path: Path) -> None:
    for label in ("rtpo", "grpo", "grpo_exact"):
        write_realistic_run(tmp_path, label, 0, questions=40)
    success = draw(tmp_path).axes[0]
    bottom, top = success.get_ylim()
    assert bottom == 0
    assert top >= success.dataLim.y1


def test_held_out_marks_stay_close_to_their_place(tmp_path: Path) -> None:
    for label in ("rtpo", "grpo", "grpo_exact"):
        write_realistic_run(tmp_path, label, 0, questions=40)
    success = draw(tmp_path).axes[0]
    end = max(run.ledger["rollouts"] for group in complete_groups(tmp_path, "quickstart") for run in group.runs)
    points = [line.get_xydata()[0] for line in success.lines if line.get_marker() in {"o", "s", "^"}]
    marks = [x for x, y in points if np.isfinite(y)]
    assert len(set(marks)) == len(marks) == 6
    assert all(min(abs(x), abs(x - end)) < 0.02 * end for x in marks)


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
    assert three.get_supxlabel().splitlines() == [
        "quickstart; profile toy; seeds: 3. Toy-scale runs, not the paper's results. Held-out: marks set side by side.",
        "A step's training success, ratio and KL stand at the rollouts that trained the weights it began with.",
    ]


def test_what_stands_under_the_panels_stays_inside_the_figure(tmp_path: Path) -> None:
    write_realistic_run(tmp_path, "rtpo", 0, questions=40)
    figure = draw(tmp_path)
    assert "With 1 seed" in figure.get_supxlabel()
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
    assert measures.curve_over_runs(group, "kl_k1")["rollouts"].tolist() == [0, 56]


def test_seeds_meet_at_common_rollouts(tmp_path: Path) -> None:
    for seed, charged in ((0, (20, 60, 100)), (1, (40, 80, 120))):
        # nothing was graded in the first step
        success = [None, *(n / 100 for n in charged)]
        steps = [step(i + 1, n, success[i], [update(1, 0.0, 0.0)]) for i, n in enumerate((*charged, 140))]
        write_run(tmp_path, "rtpo", seed, steps, answers("after", "sampled", {"a": [1.0]}))
    (group,) = complete_groups(tmp_path, "quickstart")
    curve = measures.curve_over_runs(group, "success")
    assert curve["rollouts"].tolist() == [40, 70, 100]
    assert curve["mean"].tolist() == pytest.approx([0.4, 0.7, 1.0])


def test_nothing_to_draw_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--results", str(tmp_path), "--experiment", "quickstart", "--output", str(tmp_path / "figures")]
    assert main(given) == 1
    assert "holds no complete run" in capsys.readouterr().err
    assert not (tmp_path / "figures").exists()
