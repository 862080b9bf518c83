"""Evaluate a checkpoint on benchmarks (docs/run/evaluation.md):

    python experiments/evaluate.py checkpoint=results/EXPERIMENT/RUN 'benchmarks=[math500,aime24]'
    python experiments/evaluate.py checkpoint=models/Qwen3-8B machine=a100x8 'benchmarks=[2wiki]'
    python experiments/evaluate.py checkpoint=http://127.0.0.1:8000/v1 endpoint.model=Qwen3-8B \\
        endpoint.tokenizer=/models/Qwen3-8B 'benchmarks=[math500]'

Every field can be set so. The common ones, with their defaults:

    checkpoint=???               must be given: a run's folder, a model's folder, a server's address
    experiment_name=evaluation   records are in results/<experiment_name>/<label>/<benchmark>/
    data=data                    the folder of prepared files
    limit=null                   the first questions of each benchmark alone
    samples=4                    rollouts a question
    decoding.temperature=0.6     0 is greedy
    decoding.top_p=0.95          the most likely tokens with this share of the probability
    rollout_context=strip_think  full for policies that were trained with full history
    machine=null                 for a model's folder, what serves it: a file of configs/profile/

benchmarks are files of configs/benchmarks/. --cfg job prints all fields with their values, and
plays nothing. A stopped evaluation goes on where it was when the same command is given again.
"""

import sys
from dataclasses import asdict
from pathlib import Path

from omegaconf import DictConfig

from analysis.run_table import decoded
from analysis.summary import summarise, table
from rtpo.errors import InfrastructureError, Stopped
from rtpo.evaluation.evaluate import evaluate
from rtpo.evaluation.panel import compose_evaluation
from rtpo.run.cli import command, with_configuration


def evaluate_one(tree: DictConfig) -> None:
    """The evaluation of a composed tree, whose summary is printed."""
    config = compose_evaluation(tree)
    try:
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


def _quoted(word: str) -> str:
    """An argument that names a run's folder, whose `,` and `=` Hydra would read."""
    field, _, path = word.partition("=")
    return f"{field}='{path}'" if field == "checkpoint" and Path(path).is_dir() else word


@command
def main() -> None:
    sys.argv[1:] = map(_quoted, sys.argv[1:])
    with_configuration("evaluate", __doc__, evaluate_one)


if __name__ == "__main__":
    sys.exit(main())
