"""Evaluate a checkpoint on benchmarks (docs/run/evaluation.md):

    python experiments/evaluate.py checkpoint=results/EXPERIMENT/RUN 'benchmarks=[math500,aime24]'
    python experiments/evaluate.py checkpoint=/models/Qwen3-8B profile=a100x8 'benchmarks=[hotpotqa]'
    python experiments/evaluate.py checkpoint=http://127.0.0.1:8000/v1 endpoint.model=Qwen3-8B \\
        endpoint.tokenizer=/models/Qwen3-8B 'benchmarks=[math500]'

Benchmarks are those of configs/benchmarks/. Records go to <results>/<experiment_name>/<label>/<benchmark>/; a killed
evaluation goes on where it was left when the same command is run again.
"""

import sys
from dataclasses import asdict

from rtpo.run.command import command

import hydra
from omegaconf import DictConfig

from analysis.evaluation import decoded, summarise, table
from rtpo.errors import InfrastructureError, Stopped
from rtpo.evaluation.evaluate import evaluate
from rtpo.evaluation.panel import compose_evaluation
from rtpo.run.composition import in_words
from rtpo.run.config import PROJECT


@command
def run(tree: DictConfig) -> None:
    try:
        config = compose_evaluation(tree)
        summaries = evaluate(config, summarise)
    except InfrastructureError as error:
        raise InfrastructureError(f"{error} What was played is kept: run the same command to go on.") from error
    except KeyboardInterrupt as stopped:
        raise Stopped("stopped: run the same command to go on") from stopped
    print(table(summaries, dict.fromkeys(summaries, decoded(asdict(config.decoding)))))
    for name, summary in summaries.items():
        for sentence in (summary["alarm"], *summary["notes"]):
            if sentence:
                print(f"{name}: {sentence}", file=sys.stderr)


@command
@in_words()
@hydra.main(version_base=None, config_path=str(PROJECT / "configs"), config_name="evaluate")
def main(tree: DictConfig) -> None:
    if status := run(tree):
        sys.exit(status)  # which Hydra lets pass


if __name__ == "__main__":
    sys.exit(main())
