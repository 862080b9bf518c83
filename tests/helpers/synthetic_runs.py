"""Made-up run folders in the schema of results/README.md, for the tests of analysis/."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml


def update(tokens: int, kl: float, tied: float, rows: int = 8) -> dict[str, Any]:
    """An update of the first turn, whose KL is all made by the context."""
    return {
        "rows": rows,
        "tied_rows": round(rows * tied),
        "trained_turns": [0],
        "trained_tokens": tokens,
        "zero_advantage": {"all": tied, "turn_0": tied},
        "mismatch/ratio_gm": float(np.exp(-kl)),
        **dict.fromkeys(("mismatch/kl_k1", "mismatch/context/kl_k1", "mismatch/turn_0/kl_k1"), kl),
        "optimizer_steps": 1,
        "residual": 0.0,
    }


def empty_update() -> dict[str, Any]:
    """An update without rows."""
    return {"rows": 0, "trained_turns": [], "trained_tokens": 0, "residual": None}


def step(number: int, rollouts: int, success: float | None, updates: list[dict[str, Any]]) -> dict[str, Any]:
    """A step up to which a rollout took 40 tokens and 10 ms."""
    return {
        "step": number,
        "rollouts": rollouts,
        "generated_tokens": 40 * rollouts,
        "seconds": {"evaluate": 1.0},
        "wall_seconds": 1.0 + 0.01 * rollouts,
        "success": success,
        "mean_reward": success,
        "updates": updates,
    }


def answers(when: str, mode: str, rewards: dict[str, list[float | None]], step: int = 0) -> list[dict[str, Any]]:
    """Evaluation lines: `rewards` holds a question's samples."""
    place = {"when": when, "mode": mode, "step": step}
    return [
        held_out(task, sample, episode(reward)) | place
        for task, samples in rewards.items()
        for sample, reward in enumerate(samples)
    ]


def episode(
    reward: float | None,
    *,
    turns: int = 2,
    tokens: int = 100,
    calls: tuple[int, int, int] = (0, 0, 0),
    termination: str = "answered",
    detail: str = "",
) -> dict[str, Any]:
    """What lines of evaluations and paths tell of an episode; `calls`: attempted, executed, ok."""
    attempted, executed, ok = calls
    counts = {"attempted": attempted, "executed": executed, "ok": ok, "failed": attempted - executed}
    return {
        "grade": "ungradable" if reward is None else "graded",
        "reward": reward,
        "detail": detail,
        "termination": termination,
        "turns": turns,
        "cut_turns": 0,
        "generated_tokens": tokens,
        "calls": {"python": counts} if attempted else {},
    }


def held_out(task: str, sample: int, of: dict[str, Any]) -> dict[str, Any]:
    """A line of a run's own sampled evaluation after training."""
    line = {"when": "after", "step": 1, "rollouts": 0, "split": "held_out", "mode": "sampled", "task": task}
    return {**line, "sample": sample, **of}


def path(step: int, task: str, of: dict[str, Any], parent: str | None = None) -> dict[str, Any]:
    """A line of a path of training."""
    return {"step": step, "parent": parent, "start_k": int(parent is not None), "task": task, **of}


def write_evaluation(run: Path, benchmark: str, lines: list[dict[str, Any]]) -> Path:
    """An evaluation inside a run's folder; `lines` are episodes with uid and sample."""
    folder = run / benchmark
    folder.mkdir()
    (folder / "config.yaml").write_text("{}")
    samples = [{"qa": None, "audit": None, "meta": {}, **line} for line in lines]
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in samples))
    (folder / "summary.json").write_text("{}")
    questions = len({line["uid"] for line in lines})
    manifest = {
        **{"schema": 1, "benchmark": benchmark, "panel": {"questions": questions}, "samples": len(lines) // questions},
        "checkpoint": {"run": f"{run.parent.name}/{run.name}", "policy_version": 9},
        "decoding": {"temperature": 0.6, "top_p": 0.95, "top_k": -1},
        **{"rollout_context": "strip_think", "limits": {}, "settings": {}},
    }
    write_manifest(folder, manifest)
    return folder


def write_run(
    results: Path,
    label: str,
    seed: int,
    steps: list[dict[str, Any]],
    evaluations: list[dict[str, Any]],
    *,
    paths: list[dict[str, Any]] | None = None,
    complete: bool = True,
    manifest: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    experiment: str = "quickstart",
) -> Path:
    """A run folder; `manifest` and `config` replace entries of its files."""
    folder = results / experiment / f"{label}-seed{seed}"
    folder.mkdir(parents=True)
    settings = {
        "results": str(results),
        "seed": seed,
        "algorithm": {"label": label},
        "optimizer": {"lr": 0.5},
        "budget": {"rollouts": 1024, "seconds": None},
        "model": {"name": "toy_math_warm_start"},
        "task": {"name": "toy_math", "train": {"file": None}},
        "profile": {"name": "toy"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings | (config or {})))
    for file, lines in (("steps", steps), ("evaluations", evaluations), ("paths", paths)):
        if lines is not None:
            (folder / f"{file}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if complete:
        ledger = {"budget": {"rollouts": 1024}, "rollouts": 1000 + seed, "generated_tokens": 45678}
        written = {
            **{"schema": 1, "experiment": experiment, "run": folder.name, "label": label, "seed": seed},
            **{"algorithm": label.split("_")[0], "task": "toy_math", "profile": "toy", "steps": len(steps)},
            **{"rollout_context": "strip_think", "training_context": "recorded", "policy_version": 9},
            **{"model": "toy_math_warm_start", "model_sha256": {"model.safetensors": "0"}},
            "wall_seconds": 100.0 + seed,
            "ledger": ledger | {"optimizer_steps": 36, "trained_tokens": 40000, "seconds": {"evaluate": 10.0}},
        }
        write_manifest(folder, written | (manifest or {}))
    return folder


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """The manifest with the checksums of the files as they are now."""
    files = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != "manifest.json"
    }
    (folder / "manifest.json").write_text(json.dumps(manifest | {"files": files}))
