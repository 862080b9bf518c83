"""Memory of updates and of what is offloaded, counted on tensors without contents, beside the plan."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from omegaconf import OmegaConf

from experiments.rehearsal.models import shaped
from experiments.rehearsal.shared import Line, Rehearsed
from rtpo.planning.data import GIB, assumptions, find_hardware
from rtpo.planning.memory import gpu_memory, gpu_problems, largest_micro_batch, pinned_memory, total, trains
from rtpo.run.config import RunConfig
from rtpo.run.experiments import load_experiment

SETTINGS = (
    ("main_table", "profile=a100x8"),
    ("main_table", "profile=a100x1"),
    ("main_table", "profile=h200x1"),
    ("credit", "profile=a100x8"),
    ("gsm8k_audit", "profile=h200x1", "launch.models.credit=Qwen3-8B"),
)
"""experiments and overrides: of their elements, those that differ in what an update takes; the last does not fit"""
GPU_WITHIN, HOST_WITHIN = 0.1, 0.05
"""of what is counted, relative"""


def rehearse() -> Rehearsed:
    on_cpu()
    with tempfile.TemporaryDirectory() as folder:
        pairs = [lines(run, Path(folder) / str(number)) for number, run in enumerate(different())]
    updates, pinned = zip(*pairs, strict=True)
    return Rehearsed(
        [*updates, *{one.what: one for one in pinned}.values()],
        [
            "what CUDA, NCCL and an allocator take besides: the plan assumes overhead_gib for them.",
            "trees with branches, of which FlexAttention on CUDA is assumed to keep what the causal kernel does.",
        ],
    )


def on_cpu() -> None:
    """verl settles its platform when it is first imported."""
    os.environ |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "rtpo.verl_harness.plugin"}


def different() -> list[RunConfig]:
    """Runs that train, one for each amount of memory."""
    found: dict[tuple[object, ...], RunConfig] = {}
    for experiment, *overrides in SETTINGS:
        for element in load_experiment(experiment, [*overrides, "seed=0"]).elements:
            run = element.run
            if trains(run):
                key = (run.model.name, run.profile.processes, run.algorithm_config.kl > 0, *largest_micro_batch(run))
                found.setdefault(key, run)
    return list(found.values())


def lines(run: RunConfig, folder: Path) -> tuple[Line, Line]:
    """An update of a run, and what a node keeps of it in pinned memory, each beside the plan."""
    from rtpo.verl_harness.rehearsal.memory import update_memory

    hardware = replace(find_hardware(run.profile.name), gpus=run.profile.processes)
    ranks, (nodes, pairs) = run.profile.processes * run.profile.nodes, largest_micro_batch(run)
    found = update_memory(OmegaConf.create(run.verl), str(shaped(run.model.name, folder)), ranks, nodes, pairs)
    overhead = assumptions().overhead_gib * GIB
    update = gpu_memory(run, hardware).update_bytes - overhead
    # parameters, two moments, and the reference
    copies = 3 + (run.algorithm_config.kl > 0)
    pinned = copies * sum(1 << (block - 1).bit_length() for block in found.shards)
    what = f"{run.model.name} on {ranks} x {hardware.memory_gib:.0f} GiB"
    fits, is_refused = found.peak + overhead <= hardware.memory_bytes, bool(gpu_problems(run, hardware))
    wrong = ("preflight does not refuse it.",) if not fits and not is_refused else ()
    said = {"Fits": "yes" if fits else "no", "Preflight": "refuses" if is_refused else "takes"}
    one = _beside(f"update: {what}, a micro-batch of {nodes:,} nodes", found.peak, update, GPU_WITHIN)
    return (
        replace(one, figures={**one.figures, **said}, failed=one.failed + wrong),
        _beside(f"pinned: {what}, {copies} copies", pinned, total(pinned_memory(run, hardware)), HOST_WITHIN),
    )


def _beside(what: str, counted: float, planned: float, within: float) -> Line:
    off = planned / counted - 1
    failed = (f"the plan is off by {off:+.0%}, more than {within:.0%}.",) if abs(off) > within else ()
    return Line(what, {"Counted, GiB": counted / GIB, "Plan, GiB": planned / GIB, "Off, %": 100 * off}, failed)
