"""Questions with a search tool and, if the settings ask for it, a Python tool."""

from dataclasses import dataclass, field
from typing import Any

from rtpo.core.bounds import Count
from rtpo.data.registry import read_tasks
from rtpo.envs.base import Environment, Settings
from rtpo.envs.math import limits_sentence
from rtpo.envs.tool_env import ToolEnv
from rtpo.rewards.qa_reward import QAReward, QASettings
from rtpo.tools.base import Tool
from rtpo.tools.python.tool import PythonSettings, PythonTool
from rtpo.tools.search.tool import SearchSettings, SearchTool
from rtpo.types import Grade, Task


@dataclass(frozen=True)
class SearchEnvSettings(Settings):
    """Settings of the search task."""

    search: SearchSettings
    calls_per_reply: Count = 4  # later calls of a reply are not run
    reward: QASettings = field(default_factory=QASettings)
    python: PythonSettings | None = None  # null: no Python tool

    def problems(self, path: str) -> list[str]:
        problems = self.search.problems(f"{path}.search") + self.reward.problems(f"{path}.reward")
        if {"http", "web"} & set(self.search.backends) and self.search.cache is None:
            problems.append(
                f"{path}.search.cache is null, so the server could answer a query differently after a crash: name a "
                "folder."
            )
        return problems + (self.python.problems(f"{path}.python") if self.python else [])

    def check(self) -> dict[str, Any]:
        facts = {"search": self.search.check(), "reward": self.reward.check()}
        return facts | ({"python": self.python.check()} if self.python else {})


class SearchEnv(ToolEnv):
    """One question. The task's `answer` is a tuple of accepted answers."""

    def __init__(self, settings: SearchEnvSettings, max_turns: int) -> None:
        tools: list[Tool] = [SearchTool(settings.search)]
        if settings.python is not None:
            tools.append(PythonTool(settings.python))
        limits = limits_sentence(max_turns, settings.calls_per_reply)
        super().__init__(f"Search, then answer in few words in \\boxed{{}}. {limits}", tools, settings.calls_per_reply)
        self._reward = QAReward(settings.reward)

    async def _grade_answer(self, task: Task, answer: str) -> Grade:
        return await self._reward.grade(task.question, task.answer, answer)


ENVIRONMENT = Environment(SearchEnv, read_tasks, settings=SearchEnvSettings)
