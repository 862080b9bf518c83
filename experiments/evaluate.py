"""Evaluate a checkpoint on benchmarks (docs/run/evaluation.md):

    python experiments/evaluate.py checkpoint=results/EXPERIMENT/RUN 'benchmarks=[math500,aime24]'
    python experiments/evaluate.py checkpoint=models/Qwen3-8B machine=a100x8 'benchmarks=[2wiki]'
    python experiments/evaluate.py checkpoint=http://127.0.0.1:8000/v1 endpoint.model=Qwen3-8B \\
        endpoint.tokenizer=models/Qwen3-8B 'benchmarks=[math500]'

Every field can be set like this. The common ones, with their defaults:

    checkpoint=???               required: a run's folder, a model's folder, or a server's address
    experiment_name=evaluation   records are in results/<experiment_name>/<label>/<benchmark>/
    data=data                    folder of prepared files
    limit=null                   how many questions of each benchmark, from the first; null: all
    samples=4                    rollouts for each question
    decoding.temperature=0.6     0 is greedy
    decoding.top_p=0.95          sample from the likeliest tokens that together have this probability
    rollout_context=strip_think  drops past thinking; full keeps it, for policies that were trained with it
    machine=null                 the profile (configs/profile/) to serve a model's folder with

Benchmarks are files of configs/benchmarks/. --cfg job prints all fields with their values, and
plays nothing. To resume a stopped evaluation, give the same command again.
"""

import sys
from dataclasses import asdict
from pathlib import Path

from analysis.run_table import decoding_text
from analysis.summary import summarise, table
from rtpo.errors import InfrastructureError, Stopped
from rtpo.evaluation.evaluate import evaluate
from rtpo.evaluation.panel import EvaluateConfig, compose_evaluation
from rtpo.run.cli import command, with_configuration


def evaluate_one(config: EvaluateConfig) -> None:
    """Run the evaluation, and print its summary."""
    from rtpo.verl_harness.session import closed_on_failure  # imports Ray

    try:
        with closed_on_failure():
            summaries = evaluate(config, summarise)
    except InfrastructureError as error:
        raise InfrastructureError(f"{error} What was played is kept: run the same command to go on.") from error
    except KeyboardInterrupt as stopped:
        raise Stopped("stopped: run the same command to go on") from stopped
    print(table(summaries, dict.fromkeys(summaries, decoding_text(asdict(config.decoding)))))
    for name, summary in summaries.items():
        for sentence in (summary["alarm"], *summary["notes"]):
            if sentence:
                print(f"{name}: {sentence}", file=sys.stderr)


def _quoted(word: str) -> str:
    """The argument, with quotes if it names a run's folder: Hydra would read the `,` and `=` of its path."""
    field, _, path = word.partition("=")
    return f"{field}='{path}'" if field == "checkpoint" and Path(path).is_dir() else word


@command
def main() -> int:
    sys.argv[1:] = map(_quoted, sys.argv[1:])
    return with_configuration("evaluate", __doc__, compose_evaluation, evaluate_one)


if __name__ == "__main__":
    sys.exit(main())
