"""The model card of an exported policy, filled from its run's records. What they do not say is written `unknown`."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoTokenizer

from analysis.evaluation import HELD_OUT, decoded
from analysis.evaluation import table as benchmark_table
from analysis.measures import held_out, success
from analysis.pages.markdown import ruled
from analysis.records import RunGroup, load_run
from rtpo.core.chat import ChatFormat
from rtpo.data.registry import REGISTRY
from rtpo.run import archives
from rtpo.run.config import DataConfig
from rtpo.run.export import TrainedPolicy

TOY = "toy"
"""the profile, and the beginning of its tasks' names"""
UNKNOWN = "unknown"


def model_card(trained: TrainedPolicy, repository: str | None, dtype: str) -> str:
    """Markdown with a Hugging Face head. repository: of the Hub, if it goes to one. dtype: of the exported weights.
    Raises DataError for a finished run whose records were changed."""
    run, manifest = trained.config, trained.manifest or {}
    name = f"{run.experiment_name}/{trained.folder.resolve().name}"
    is_toy = run.profile.name == TOY or run.task.name.startswith(TOY)
    head = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "license": UNKNOWN,
        "base_model": run.model.name,
        "tags": list(dict.fromkeys(["rtpo", run.algorithm_config.name, *([TOY] if is_toy else [])])),
    }
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {name}",
        *(["**A toy run.** Its results are toy-scale and never the paper's."] if is_toy else []),
        f"{run.model.name} trained with `{run.label}` (algorithm {run.algorithm_config.name}) on task {run.task.name}, "
        f"seed {run.seed}. Made from the run's records by `experiments/export.py`.",
        _state(trained),
        "## Run",
        _pairs(
            {
                "Save": f"{trained.save}, after step {trained.step}",
                "Updates of the weights": trained.policy_version,
                "Profile": run.profile.name,
                "Rollout context": run.algorithm_config.rollout_context,
                "Training context": run.algorithm_config.training_context,
                "Started, ended (UTC)": f"{manifest.get('started', UNKNOWN)}, {manifest.get('ended', UNKNOWN)}",
                "Ended by the limit of": manifest.get("ended_by", UNKNOWN),
                "Times resumed": manifest.get("resumed", UNKNOWN),
                "Code at commit": _commit(manifest),
                "Machine": _words(manifest.get("machine")),
                "Packages": _words(manifest.get("packages")),
                "Weights stored as": dtype,
            }
        ),
        "## Model it began from",
        _pairs(
            {
                "Name": run.model.name,
                "SHA-256 of its weights": _words(manifest.get("model_sha256")),
                "Licence": UNKNOWN,
                "What it was trained on before": UNKNOWN,
            }
        ),
        "## Data",
        _pairs({"Trained on": _data(run.task.train), "Held out": _data(run.task.held_out)}),
        "## Settings",
        _pairs(dict(_settings(run.as_dict()))),
        "## Ledger",
        "Totals of the run, at the save where it is not finished. Seconds are wall-clock.",
        _pairs(dict(_flat({key: total for key, total in trained.ledger.items() if key != "budget"}))),
        "## Evaluation",
        *_evaluation(trained),
        "## Use",
        *_use(trained, repository),
        "The policy was trained in turns with tools or an environment, with the rollout context above: other contexts, "
        "tasks and tools were not tested.",
    ]
    return "\n\n".join(parts) + "\n"


def _use(trained: TrainedPolicy, repository: str | None) -> list[str]:
    """An example that generates a turn, as the run did at the first context that it recorded."""
    file = trained.folder / "rollouts.jsonl"
    first = archives.read(file).partition(b"\n")[0] if archives.exists(file) else b""
    if not first:
        return [f"The run recorded no rollout: what the policy was asked is `{UNKNOWN}`."]
    run = trained.config
    ids = json.loads(first)["turns"][0]["context_ids"]
    prompt = ChatFormat(AutoTokenizer.from_pretrained(run.model.path)).decode(ids)
    settings = {"max_new_tokens": run.task.max_turn_tokens, "do_sample": True, **asdict(run.sampling)}
    settings["top_k"] = max(0, settings["top_k"])  # which is -1 for none elsewhere
    example = f"""from transformers import AutoModelForCausalLM, AutoTokenizer

place = {(repository or ".")!r}{"" if repository else "  # this folder"}
model, tokenizer = AutoModelForCausalLM.from_pretrained(place), AutoTokenizer.from_pretrained(place)
prompt = (
{"".join(f"    {line!r}" + chr(10) for line in prompt.splitlines(keepends=True))})
asked = tokenizer(prompt, add_special_tokens=False, return_token_type_ids=False, return_tensors="pt")
said = model.generate(**asked, {", ".join(f"{name}={value!r}" for name, value in settings.items())})
print(tokenizer.decode(said[0, asked["input_ids"].shape[1] :]))"""
    return [
        "One turn, sampled as in training, at the first context of the run's records:",
        f"````python\n{example}\n````",
    ]


def _state(trained: TrainedPolicy) -> str:
    if trained.manifest is not None:
        return "The run is finished."
    used, budget = trained.ledger["rollouts"], trained.ledger["budget"]["rollouts"]
    return (
        f"**The run is not finished**: {used:,} of {budget:,} rollouts were used at this save. What is known of a run "
        f"at its end alone is `{UNKNOWN}`."
    )


def _commit(manifest: Mapping[str, Any]) -> str:
    changed = {True: " with changes", False: ""}.get(manifest.get("dirty", UNKNOWN), ", changes unknown")
    return f"{manifest['commit']}{changed}" if "commit" in manifest else UNKNOWN


def _data(data: DataConfig) -> str:
    count = "all" if data.count is None else f"at most {data.count:,}"
    if data.file is None:
        return f"generated, {data.count:,} of split {data.split}, seed {data.seed}"
    known = REGISTRY.get(Path(data.file).stem)
    source = f"{known.source}, licence: {known.licence}" if known else f"source and licence {UNKNOWN}"
    return f"{Path(data.file).name}, split {data.split}, {count} ({source})"


def _settings(config: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for part in ("algorithm", "optimizer", "sampling", "budget"):
        for key, value in config[part].items():
            yield f"`{part}.{key}`", "null" if value is None else value
    for key in ("env", "max_turns", "max_prompt_tokens", "max_turn_tokens", "max_context_tokens", "settings"):
        yield f"`task.{key}`", config["task"][key]


def _evaluation(trained: TrainedPolicy) -> list[str]:
    if trained.manifest is None:
        return ["Not evaluated: the run is not finished."]
    return [*_held_out(trained.folder), *_benchmarks(trained)]


def _held_out(folder: Path) -> list[str]:
    group = RunGroup("", (load_run(folder),))
    rows = []
    for when in ("before", "after"):
        for mode in ("sampled", "greedy"):
            evaluation = held_out(group, when, mode)
            if evaluation is None:
                continue
            found = success(evaluation)
            value = UNKNOWN if found is None else f"{100 * found.mean:.1f}"
            if found is not None and not math.isnan(found.low):
                value += f" [{100 * found.low:.1f}, {100 * found.high:.1f}]"
            size = f"{evaluation.success.shape[1]:,} × {evaluation.samples}"
            how = f"sampled at {HELD_OUT}" if mode == "sampled" else mode
            rows.append((f"{when} training, {how}", size, value, str(evaluation.ungraded)))
    if not rows:
        return ["Held-out tasks: not evaluated."]
    return [
        "Held-out tasks of the run: share with reward 1, in percent, with 95 % intervals over questions. They say "
        "nothing about other seeds.",
        _table(("When and how", "Questions × samples", "Success, %", "Ungraded samples"), rows),
    ]


def _benchmarks(trained: TrainedPolicy) -> list[str]:
    """Those that were evaluated at this save; their folders lie in the run's."""
    summaries, decoding = {}, {}
    for file in archives.find(trained.folder, "*/manifest.json"):
        manifest = json.loads(archives.read(file))
        if manifest.get("checkpoint", {}).get("save") == trained.save:
            summaries[file.parent.name] = json.loads(archives.read(file.parent / "summary.json"))
            decoding[file.parent.name] = decoded(manifest["decoding"])
    if not summaries:
        return ["Benchmarks: not evaluated."]
    return ["Benchmarks: shares in percent, with 95 % intervals over questions.", benchmark_table(summaries, decoding)]


def _flat(tree: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{below}", found) for below, found in _flat(value))
        else:
            yield key, value


def _pairs(values: Mapping[str, Any]) -> str:
    return _table(("What", "Value"), [(what, _words(value)) for what, value in values.items()])


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return ruled(head, rows).removesuffix("\n")


def _words(value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(below)}" for key, below in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
