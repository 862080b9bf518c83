"""Export a run's trained policy as a Hugging Face model folder, and push it to the Hub. verl's FSDP2 shards are merged
without verl or a GPU."""

import json
import logging
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import torch
import yaml
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
from huggingface_hub.utils import validate_repo_id
from omegaconf import OmegaConf
from torch.distributed.tensor import DTensor, Replicate, Shard
from transformers import AutoConfig, AutoModelForCausalLM

from rtpo.core.chat import ChatFormat
from rtpo.core.files import whole_folder
from rtpo.core.names import counted, first_words
from rtpo.errors import DataError, MachineError
from rtpo.run.config import RunConfig, compose_run
from rtpo.run.lines import model_sha256
from rtpo.run.model_folder import check_model, check_same_model, load_tokenizer
from rtpo.run.reading import json_object, why_no_run
from rtpo.run.records import RunFolder

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FILE_BYTES = 5 * 10**9
"""the largest weight file; a larger tensor gets its own file"""
COPIED = (
    *("generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json"),
    *("merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
)
"""files that are copied from the initial model's folder, if it has them"""
UNKNOWN, TOY = "unknown", "toy"
CARD = Path(__file__).with_name("model_card.md")

# torch's device_mesh warns of missing process groups, which nothing here needs
logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)


@dataclass(frozen=True)
class TrainedPolicy:
    """The policy in a run's last save."""

    folder: Path
    config: RunConfig
    weights: Path  # the save's folder of verl's shards
    save_name: str
    policy_version: int  # updates so far
    ledger: Mapping[str, Any]  # of the finished run, or at the save
    manifest: Mapping[str, Any] | None  # None if the run is not finished


def find_trained(path: Path) -> TrainedPolicy:
    """Find the policy of the run in `path`. Raises DataError if it has none, or its initial model is missing or
    changed."""
    if not (path / "config.yaml").exists():
        raise DataError(why_no_run(path))
    folder = RunFolder(path)
    manifest = folder.manifest if folder.is_finished else None
    save, config = folder.required_save(), compose_run(OmegaConf.create(folder.config))
    check_model(config.model.path)
    state = save.state
    began = manifest["model_sha256"] if manifest is not None else state["progress"].model_sha256
    if began is not None:  # saves of earlier versions do not say
        check_same_model(config, began, model_sha256(config.model.path))
    version, ledger = int(state["harness"]["policy_version"]), (manifest or state)["ledger"]
    return TrainedPolicy(path, config, save.folder, state["name"], version, ledger, manifest)


# the folder


def write_model(trained: TrainedPolicy, output: Path, dtype: str | None = None, repository: str | None = None) -> None:
    """Write the model folder `output`: weights, config.json, tokenizer, README.md. It moves into place when complete.
    dtype: a key of DTYPES; None keeps the saved type. repository: the Hub repository that the card names. Raises
    DataError and MachineError."""
    source = Path(trained.config.model.path)
    with whole_folder(output) as partial, RunFolder(trained.folder).held():  # a run in progress may delete its save
        model = load_model(trained.weights, source, dtype)
        model.save_pretrained(partial, max_shard_size=FILE_BYTES)
        for name in COPIED:
            if (source / name).exists():
                shutil.copyfile(source / name, partial / name)
        model_config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        model_config.pop("torch_dtype", None)  # the name of `dtype` in older folders
        model_config["dtype"] = saved = str(model.dtype).removeprefix("torch.")
        (partial / "config.json").write_text(json.dumps(model_config, indent=2) + "\n", encoding="utf-8")
        (partial / "README.md").write_text(model_card(trained, repository, saved), encoding="utf-8")
        for file in partial.glob("*.safetensors"):
            shutil.copymode(partial / "config.json", file)  # safetensors lets only the owner read it


def load_model(weights: Path, source: Path, dtype: str | None) -> Any:
    """Load the model in `source` with verl's saved weights. Raises DataError for another model's weights."""
    shards = load_shards(weights)
    state = {name: merged(name, [shard[name] for shard in shards]) for name in shards[0]}
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))
    try:
        model.load_state_dict(state, assign=True)
    except RuntimeError as error:  # it names each tensor that is missing, misshapen or unknown
        raise DataError(
            f"the weights in {weights} are not of the model in {source} ({' '.join(str(error).split())}): put the "
            "model that the run began from there."
        ) from error
    model.tie_weights()
    return model if dtype is None else model.to(DTYPES[dtype])


def load_shards(folder: Path) -> list[dict[str, torch.Tensor]]:
    """The state of every rank, in rank order, memory-mapped. Raises DataError if a file cannot be read."""
    try:
        ranks = int(json.loads((folder / "fsdp_config.json").read_text(encoding="utf-8"))["world_size"])
        files = [folder / f"model_world_size_{ranks}_rank_{rank}.pt" for rank in range(ranks)]
        # this runs code in the save: besides numbers, tensors hold the device mesh over which they are sharded
        return [torch.load(file, map_location="cpu", mmap=True, weights_only=False) for file in files]
    except Exception as error:  # a damaged file may raise anything
        raise DataError(f"the weights in {folder} cannot be read ({error}): train the run again.") from error


def merged(name: str, shards: Sequence[torch.Tensor]) -> torch.Tensor:
    """Merge the ranks' parts of a tensor. Raises DataError unless it is sharded along one dimension over all ranks,
    replicated, or a plain tensor, which is taken from rank 0."""
    first = shards[0]
    if not isinstance(first, DTensor):
        return first.contiguous()
    places = first.placements
    with torch.no_grad():
        parts = [shard.to_local() if isinstance(shard, DTensor) else shard for shard in shards]
    if places == (Replicate(),):
        whole = parts[0]
    elif len(places) == 1 and isinstance(places[0], Shard) and first.device_mesh.size() == len(shards):
        whole = torch.cat(parts, dim=places[0].dim)
    else:
        raise DataError(
            f"{name} is saved as {places} on {counted(len(shards), 'rank')}: only tensors sharded over all ranks can "
            "be merged."
        )
    if whole.shape != first.shape:
        raise DataError(f"{name} has shape {tuple(whole.shape)} when merged and {tuple(first.shape)} on its ranks.")
    return whole.contiguous()


# the model card


def model_card(trained: TrainedPolicy, repository: str | None, dtype: str) -> str:
    """The model card: Markdown with Hugging Face metadata, from the run's records. repository: of the Hub, if the model
    is pushed. dtype: of the exported weights."""
    run = trained.config
    about = {name: value for name, value in (trained.manifest or {}).items() if name not in ("ledger", "files")}
    is_toy = run.profile.name == TOY or run.task.name.startswith(TOY)
    used, budget = trained.ledger["rollouts"], trained.ledger["budget"]["rollouts"]
    unfinished = (
        f"**The run is not finished**: {used:,} of {counted(budget, 'rollout')} were used at this save. Not evaluated."
    )
    head = {"library_name": "transformers", "pipeline_tag": "text-generation", "license": UNKNOWN}
    tags = list(dict.fromkeys(["rtpo", run.algorithm_config.name, *([TOY] if is_toy else [])]))
    return CARD.read_text(encoding="utf-8").format(
        head=_yaml({**head, "base_model": run.model.name, "tags": tags}),
        name=f"{run.experiment_name}/{trained.folder.resolve().name}",
        toy="**A toy run.** Its results are toy-scale and never the paper's.\n\n" if is_toy else "",
        run=run,
        state=unfinished if trained.manifest is None else "The run is finished.",
        evaluation=_yaml(_evaluation(trained)),
        example=_example(trained, repository),
        about=_yaml({"save": trained.save_name, "policy_version": trained.policy_version, "dtype": dtype} | about),
        settings=_yaml(
            {part: run.as_dict()[part] for part in ("algorithm", "optimizer", "sampling", "budget", "task")}
        ),
        ledger=_yaml(dict(trained.ledger)),
    )


def _example(trained: TrainedPolicy, repository: str | None) -> str:
    """Python code that samples one turn, as in the run, at the first context in its records."""
    file = trained.folder / "rollouts.jsonl"
    first = file.read_bytes().partition(b"\n")[0] if file.exists() else b""
    if not first:
        return f"# the run recorded no rollout: a prompt of the run is {UNKNOWN}\n"
    run = trained.config
    prompt = ChatFormat(load_tokenizer(run.model.path)).decode(json.loads(first)["turns"][0]["context_ids"])
    sampling = {"max_new_tokens": run.task.max_turn_tokens, "do_sample": True, **asdict(run.sampling)}
    sampling["top_k"] = max(0, sampling["top_k"])  # no cut is 0 in transformers, -1 elsewhere
    return f"""from transformers import AutoModelForCausalLM, AutoTokenizer

place = {repr(repository) if repository else "'.'  # this folder"}
model, tokenizer = AutoModelForCausalLM.from_pretrained(place), AutoTokenizer.from_pretrained(place)
prompt = {prompt!r}
inputs = tokenizer(prompt, add_special_tokens=False, return_token_type_ids=False, return_tensors="pt")
output = model.generate(**inputs, {", ".join(f"{name}={value!r}" for name, value in sampling.items())})
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :]))
"""


def _evaluation(trained: TrainedPolicy) -> dict[str, Any]:
    """A finished run's held-out success (over graded answers, by decoding), and this save's results on benchmarks."""
    file = trained.folder / "evaluations.jsonl"
    text = file.read_bytes() if trained.manifest is not None and file.exists() else b""
    rewards: dict[str, list[bool]] = defaultdict(list)
    for line in map(json.loads, text.splitlines()):
        if line["grade"] == "graded" and line["when"] in ("before", "after"):
            rewards[f"{line['when']} training, {line['mode']}"].append(line["reward"] == 1)
    benchmarks = {
        manifest.parent.name: _json(manifest.parent / "summary.json")
        for manifest in sorted(trained.folder.glob("*/manifest.json"))
        if _json(manifest).get("checkpoint", {}).get("save") == trained.save_name
    }
    held_out = {what: f"{sum(right)} of {counted(len(right), 'graded answer')}" for what, right in rewards.items()}
    return {"held_out": held_out or "not evaluated", "benchmarks": benchmarks or "not evaluated"}


def _json(file: Path) -> Mapping[str, Any]:
    return json_object(file.read_bytes(), str(file), ())


def _yaml(values: Any) -> str:
    return yaml.safe_dump(json.loads(json.dumps(values, default=str)), sort_keys=False, allow_unicode=True)


# the Hub


def check_push(repository: str) -> None:
    """Raises DataError and MachineError if the user's token cannot make this repository."""
    with _hub_errors(repository):
        validate_repo_id(repository)
        hub = HfApi()
        user = hub.whoami()
        owners = [user["name"], *(organisation["name"] for organisation in user.get("orgs", []))]
        if "/" not in repository or repository.partition("/")[0] not in owners:
            raise DataError(f"--push {repository}: name it OWNER/NAME; the token belongs to {', '.join(owners)}.")
        if hub.repo_exists(repository) and set(hub.list_repo_files(repository)) - {".gitattributes"}:
            raise DataError(f"--push {repository}: the repository holds files already: choose another name.")


def push(folder: Path, repository: str) -> str:
    """Push a model folder to a Hub repository in one commit; a missing repository is made, as a private one. Returns
    its address. Raises DataError and MachineError, which say how to go on."""
    with _hub_errors(repository, f" {folder} is complete: push it with `hf upload {repository} {folder}`."):
        hub = HfApi()
        url = hub.create_repo(repository, private=True, exist_ok=True)
        hub.upload_folder(repo_id=repository, folder_path=folder, commit_message="Made by experiments/export.py")
    return str(url)


@contextmanager
def _hub_errors(repository: str, advice: str = "") -> Iterator[None]:
    """Turn the Hub's errors into one line. advice: a sentence to add."""
    try:
        yield
    except (LocalTokenNotFoundError, HFValidationError) as error:
        raise DataError(f"--push {repository}: {first_words(error)} (the token is HF_TOKEN).{advice}") from error
    except HfHubHTTPError as error:
        kind = DataError if error.response.status_code in (401, 403) else MachineError
        raise kind(f"--push {repository}: the Hub refuses it ({first_words(error)}).{advice}") from error
    except (OSError, httpx.HTTPError) as error:
        raise MachineError(f"--push {repository}: the Hub cannot be reached ({first_words(error)}).{advice}") from error
