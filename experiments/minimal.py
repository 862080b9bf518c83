"""The whole of RTPO (Reverse-Turn Policy Optimization) in one file, and GRPO beside it, on torch and transformers.

    python experiments/minimal.py                              RTPO on toy math, in a minute
    python experiments/minimal.py --method "grpo flattened"    GRPO trained on flattened history, the paper's baseline
    python experiments/minimal.py --method "grpo recorded"     GRPO trained in the contexts that it sampled in
    python experiments/minimal.py --model FOLDER --env textworld --rate 2e-5    RTPO of a language model on text games

A data step has a phase for each turn, from the last to the first: `rtpo_step`. Phase k plays siblings from S_k, the
state before turn k, and trains their turn k. The paper's KL is left out. Everything runs on the CPU.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from rtpo.envs.worlds import limits, worlds

Messages = list[dict[str, str]]
Reply = tuple[list[int], list[float]]  # token ids and their log-probs


# 1. The world: one episode of one task. A `copy` from before a turn is enough to play this turn again.
class World(Protocol):
    def begin(self) -> Messages:
        """Start the task, any number of times; returns the messages that the first reply answers."""

    def step(self, reply: str, is_cut: bool) -> Messages | None:
        """The messages that answer a reply; None if the episode is over. is_cut: the reply reached its token limit."""

    def copy(self) -> "World":
        """An independent world in the same state."""

    def reward(self) -> float:
        """R of the episode so far."""


# 2. Paths. Boundary S_k is the state before turn k = 0, 1, ...: the world, the context c_k, and the k turns so far.
@dataclass(frozen=True)
class Boundary:
    world: World
    context: list[int]
    turns: tuple["Turn", ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Turn:
    """At `boundary` (S_k) the policy sampled `output` (u_k), and the world answered `feedback` (f_k). Both are ids."""

    boundary: Boundary
    output: list[int]
    logprobs: list[float]
    feedback: list[int]


@dataclass(frozen=True)
class Played:
    """A path: an episode that was played to its end. A path from S_k has the boundary's k turns, then its own."""

    turns: tuple[Turn, ...]
    reward: float


# 3. Contexts, on token ids. Past thinking is stripped: c_{k+1} is c_k, the visible part of u_k, and f_k.
class Chat:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self.stop = tokenizer, tokenizer.eos_token_id
        self._open, self._close = tokenizer.convert_tokens_to_ids(["<think>", "</think>"])

    def text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def opening(self, messages: Messages) -> list[int]:
        return list(self._tokenizer.encode(self._render(messages), add_special_tokens=False))

    def feedback(self, messages: Messages, is_cut: bool) -> list[int]:
        """What the chat template puts between a reply and the next one. A cut reply still lacks its stop token."""
        conversation = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "REPLY"}, *messages]
        text = self._render(conversation).partition("REPLY")[2]
        text = text if is_cut else text.removeprefix(self._tokenizer.eos_token)
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def visible(self, output: list[int]) -> list[int]:
        """Drop the thinking: all up to the last `</think>` and its newlines, and all from an unclosed `<think>` on."""
        stop = output[-1:] if output[-1] == self.stop else []
        body = output[: len(output) - len(stop)]
        if self._close in body:
            body = body[len(body) - body[::-1].index(self._close) :]
            while body and self.text(body[:1]).strip("\n") == "":
                body = body[1:]
        return (body[: body.index(self._open)] if self._open in body else body) + stop

    def _render(self, messages: Messages) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


# 4. Sampling. All paths of a rollout sample their next turn as one batch.
@torch.no_grad()
def sample(model: Any, stop: int, contexts: Sequence[list[int]], tokens: int, temperature: float) -> list[Reply]:
    """A reply to each context. Temperature 0 is greedy."""
    longest = max(map(len, contexts))
    ids = torch.tensor([[stop] * (longest - len(context)) + context for context in contexts])
    mask = torch.tensor([[0] * (longest - len(context)) + [1] * len(context) for context in contexts])
    replies: list[Reply] = [([], []) for _ in contexts]
    cache = None
    for _ in range(tokens):
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1)
        logprobs = (out.logits[:, -1] / (temperature or 1)).log_softmax(-1)
        ids = logprobs.exp().multinomial(1) if temperature else logprobs.argmax(-1, keepdim=True)
        sampled = zip(replies, ids[:, 0].tolist(), logprobs.gather(1, ids)[:, 0].tolist(), strict=True)
        for (output, output_logprobs), token, logprob in sampled:
            if not output or output[-1] != stop:
                output.append(token)
                output_logprobs.append(logprob)
        if all(output[-1] == stop for output, _ in replies):
            break
        cache, mask = out.past_key_values, torch.cat([mask, torch.ones_like(ids)], 1)
    return replies


def rollout(
    model: Any, chat: Chat, maxima: tuple[int, int, int], starts: Sequence[Boundary], temperature: float = 1
) -> list[Played]:
    """Play from each boundary to the end of its episode. maxima: turns, tokens of a turn, tokens of a context."""
    episodes = [start.world.copy() for start in starts]
    contexts, turns = [start.context for start in starts], [list(start.turns) for start in starts]
    is_over, (max_turns, max_tokens, max_context) = [False] * len(starts), maxima
    while playing := [i for i in range(len(starts)) if not is_over[i]]:
        replies = sample(model, chat.stop, [contexts[i] for i in playing], max_tokens, temperature)
        for i, (output, logprobs) in zip(playing, replies, strict=True):
            boundary = Boundary(episodes[i].copy(), contexts[i], tuple(turns[i]))
            is_cut = output[-1] != chat.stop
            messages = episodes[i].step(chat.text(output if is_cut else output[:-1]), is_cut)
            feedback = chat.feedback(messages, is_cut) if messages is not None else []
            turns[i].append(Turn(boundary, output, logprobs, feedback))
            contexts[i] = contexts[i] + chat.visible(output) + feedback  # a new list: the boundary keeps the old one
            is_over[i] = messages is None or len(turns[i]) == max_turns or len(contexts[i]) + max_tokens > max_context
    return [Played(tuple(all_turns), world.reward()) for all_turns, world in zip(turns, episodes, strict=True)]


# 5. Credit: which ids are trained, and the advantage of each path over its baseline.
@dataclass(frozen=True)
class Row:
    """One sequence to train on. Its loss is `weight` times the mean over the ids at the places `trained`. old: their
    log-probs when they were sampled; None: the log-probs before the update."""

    ids: list[int]
    trained: list[int]
    advantage: float
    weight: float
    old: list[float] | None = None


def turn_rows(groups: Sequence[Sequence[Played]], k: int) -> list[Row]:
    """RTPO: only turn k of each boundary's siblings. The baseline is the mean return of these siblings."""
    rows, count = [], sum(map(len, groups))
    for siblings in groups:
        baseline = sum(path.reward for path in siblings) / len(siblings)
        for path in siblings:
            context, output = path.turns[k].boundary.context, path.turns[k].output
            trained = list(range(len(context), len(context) + len(output)))
            rows.append(Row(context + output, trained, path.reward - baseline, 1 / count))
    return rows


def path_rows(groups: Sequence[Sequence[Played]], is_flattened: bool) -> list[Row]:
    """GRPO: all turns of each path. The advantage is the z-score of the return among the prompt's paths. A turn is
    trained in the context it was sampled in. If `is_flattened`, as in the paper's baseline, it is trained in the whole
    history with earlier thinking. Then `old` comes from other contexts: the ratio is not 1 before the update."""
    rows, count = [], sum(map(len, groups))
    for paths in groups:
        returns = torch.tensor([path.reward for path in paths], dtype=torch.float64)
        advantages = ((returns - returns.mean()) / (returns.std() + 1e-6)).tolist()
        for path, advantage in zip(paths, advantages, strict=True):
            tokens = sum(len(turn.output) for turn in path.turns)
            history, trained, old = list(path.turns[0].boundary.context), list[int](), list[float]()
            for turn in path.turns:
                start = len(history if is_flattened else turn.boundary.context)
                places = list(range(start, start + len(turn.output)))
                if not is_flattened:
                    weight = len(turn.output) / tokens / count
                    rows.append(Row(turn.boundary.context + turn.output, places, advantage, weight, turn.logprobs))
                history += turn.output + turn.feedback
                trained, old = trained + places, old + turn.logprobs
            if is_flattened:
                rows.append(Row(history[: trained[-1] + 1], trained, advantage, 1 / count, old))
    return rows


# 6. The update: one optimizer step on PPO's clipped objective. Only flattened history has ratios to clip.
def logprobs_of(model: Any, rows: Sequence[Row]) -> Iterator[Tensor]:
    """Log-probs of each row's trained ids. Logits are computed for these ids alone."""
    longest = max(len(row.ids) for row in rows)
    ids = torch.tensor([row.ids + [0] * (longest - len(row.ids)) for row in rows])  # causal: padding changes nothing
    for row, hidden in zip(rows, model.get_decoder()(ids).last_hidden_state, strict=True):
        places = torch.tensor(row.trained)
        logprobs = model.lm_head(hidden[places - 1]).log_softmax(-1)
        yield logprobs.gather(1, torch.tensor(row.ids)[places][:, None])[:, 0]


def update(model: Any, optimizer: Any, rows: Sequence[Row], clip: float = 0.2, size: int = 32) -> None:
    """Train on rows, `size` of them at once. Rows of tied groups (advantage 0) have no gradient and are skipped."""
    rows = sorted((row for row in rows if abs(row.advantage) > 1e-9), key=lambda row: len(row.ids))
    optimizer.zero_grad()
    for first in range(0, len(rows), size):
        batch, loss = rows[first : first + size], torch.zeros(())
        for row, new in zip(batch, logprobs_of(model, batch), strict=True):
            old = new.detach() if row.old is None else torch.tensor(row.old)  # RTPO's ratio is 1
            ratio = (new - old).clamp(-10, 10).exp()
            token_loss = (-row.advantage * torch.stack([ratio, ratio.clamp(1 - clip, 1 + clip)])).amax(0)
            if row.old is not None and row.advantage < 0:
                token_loss = token_loss.clamp(max=-3 * row.advantage)  # verl's dual clip bounds large ratios
            loss = loss + row.weight * token_loss.mean()
        loss.backward()
    if rows:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


# 7. The methods. A data step plays tasks and learns. It returns the paths from S_0, and the number of all its paths.
Play = Callable[[Sequence[Boundary]], list[Played]]
Learn = Callable[[Sequence[Row]], None]
Step = tuple[list[Played], int]


def rtpo_step(starts: Sequence[Boundary], play: Play, learn: Learn, trunks: int, siblings: int) -> Step:
    """The paper's Algorithm 1. Trunks are paths that give boundaries and are never trained. From the last turn to the
    first, phase k: the current policy plays siblings from each trunk's S_k to the end, and their turn k is trained. So
    the return that judges turn k comes from a policy that has already trained the later turns."""
    played = play([start for start in starts for _ in range(trunks)])
    rollouts = len(played)
    for k in reversed(range(max(len(trunk.turns) for trunk in played))):
        boundaries = [trunk.turns[k].boundary for trunk in played if len(trunk.turns) > k]
        paths = play([boundary for boundary in boundaries for _ in range(siblings)])
        learn(turn_rows([paths[i : i + siblings] for i in range(0, len(paths), siblings)], k))
        rollouts += len(paths)
    return played, rollouts


def grpo_step(starts: Sequence[Boundary], play: Play, learn: Learn, chains: int, is_flattened: bool) -> Step:
    """The chains of a prompt are compared with each other. All their turns are trained at once."""
    paths = play([start for start in starts for _ in range(chains)])
    learn(path_rows([paths[i : i + chains] for i in range(0, len(paths), chains)], is_flattened))
    return paths, len(paths)


# 8. The run: evaluate, train for a budget of rollouts, evaluate.
TASKS, TRUNKS, SIBLINGS, CHAINS = 16, 2, 2, 16
RATES = {"rtpo": 2e-4, "grpo flattened": 1e-3, "grpo recorded": 5e-4}  # searched on toy math


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS, description="RTPO or GRPO, from a model's folder.")
    parser.add_argument("--method", choices=RATES, default="rtpo")
    parser.add_argument("--model", default=Path(__file__).parents[1] / "rtpo" / "toy" / "warm_start_math")
    parser.add_argument("--env", default="toy_math")
    parser.add_argument("--data", default="data/textworld/quests", help="folder of train.jsonl and held_out.jsonl")
    parser.add_argument("--rollouts", type=int, default=2048)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    chat = Chat(AutoTokenizer.from_pretrained(options.model))
    rate = RATES[options.method] if options.rate is None else options.rate
    optimizer = torch.optim.AdamW(model.parameters(), rate, (0.9, 0.95), weight_decay=0)
    play, learn = partial(rollout, model, chat, limits(options.env)), partial(update, model, optimizer)
    held_out, train = (worlds(options.env, *part, options.data) for part in (("held_out", 200), ("train", 2000)))

    def at_start(chosen: Sequence[World]) -> list[Boundary]:
        return [Boundary(world, chat.opening(world.begin())) for world in chosen]

    def evaluate() -> str:
        means = [sum(path.reward for path in play(at_start(held_out), temperature=t)) / len(held_out) for t in (1, 0)]
        return f"mean reward on {len(held_out)} held-out tasks: {means[0]:.3f}, greedy {means[1]:.3f}"

    print("before,", evaluate())
    spent, begun, draw = 0, time.perf_counter(), random.Random(options.seed)
    while spent < options.rollouts:
        starts = at_start(draw.sample(train, min(TASKS, len(train))))
        if options.method == "rtpo":
            played, count = rtpo_step(starts, play, learn, TRUNKS, SIBLINGS)
        else:
            played, count = grpo_step(starts, play, learn, CHAINS, options.method == "grpo flattened")
        spent, mean = spent + count, sum(path.reward for path in played) / len(played)
        print(f"{spent} rollouts, mean reward {mean:.3f}, {time.perf_counter() - begun:.0f} s", flush=True)
    print("after,", evaluate())


if __name__ == "__main__":
    main()
