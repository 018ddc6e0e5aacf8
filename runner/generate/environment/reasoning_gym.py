"""Tasks of the package reasoning-gym, made from a seed and scored by the package itself."""

import hashlib
import random
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from runner.errors import ConfigError, Fault, describe
from runner.io.files import JsonObject
from runner.io.turns import TurnDict, text_of
from runner.schema.did_you_mean import best_guess
from runner.schema.literal import to_text
from runner.schema.read import read_signature
from runner.schema.text import short_text

# How a module of the package names its task, and registers it with the class of its settings.
CONSTANT = re.compile(r'^(\w+) = "(\w+)"$', re.MULTILINE)
REGISTERED = re.compile(r'^register_dataset\(\s*(?:"(\w+)"|(\w+)),\s*\w+,\s*(\w+)', re.MULTILINE)
WEIGHT = "weight"  # the key of a task that is not a setting of the package
DEFAULT_TASK = "chain_sum"  # that a fault offers
SET_BY_ROWS = ("seed", "size")  # the settings of a task that follow from those of the environment
CACHED_DATASETS = 256  # of tasks, seeds and sizes


class ReasoningGym:
    """Questions of several tasks, each answered in one turn, with a reward of its own name."""

    single_turn = True
    packages = ("reasoning-gym",)

    def __init__(
        self,
        tasks: list[str] | dict[str, dict[str, Any] | None],
        system: str | None = "default",
        tag: str | None = "answer",
    ):
        """``tasks`` are names, or settings by name, where ``weight`` is the share of the rows.

        ``system`` is a name in the package's SYSTEM_PROMPTS, or a text. The answer is what stands
        last between ``<tag>`` and ``</tag>``, with None the whole text.
        """
        self.settings: dict[str, dict[str, Any]] = {}
        self.shares: dict[str, float] = {}
        if not isinstance(tasks, Mapping):
            tasks = dict.fromkeys(tasks)
        for name, settings in tasks.items():
            self.settings[name] = dict(settings or {})
            self.shares[name] = float(self.settings[name].pop(WEIGHT, 1.0))
        self.rewards = list(self.settings)
        self.tag = tag
        self.system = _system_prompt(system)
        self.dataset = lru_cache(maxsize=CACHED_DATASETS)(self._make_dataset)

    @staticmethod
    def find_faults(settings: Mapping[str, Any]) -> Iterator[Fault]:
        """A fault for each task, and each setting of one, that the installed package lacks."""
        tasks = settings.get("tasks")
        configs = find_tasks()
        if not configs or not isinstance(tasks, list | Mapping):
            return
        likeliest = {name: best_guess(str(name), configs, "<task>") for name in tasks}
        corrected: Any = list(likeliest.values())
        if isinstance(tasks, Mapping):
            corrected = dict(zip(corrected, tasks.values(), strict=True))
        for name in tasks or ["no task"]:
            if name not in configs:
                yield Fault(
                    where="environment.tasks",
                    found=f"reasoning-gym has no task {name!r}" if tasks else name,
                    expected=likeliest.get(name, f"some of its {len(configs)} tasks"),
                    fix=f"={to_text(corrected or [DEFAULT_TASK])}",
                )
            elif isinstance(tasks, Mapping) and isinstance(tasks[name], Mapping):
                yield from _find_setting_faults(name, tasks[name], configs[name])

    def rows(self, count: int, seed: int, held_out: bool) -> list[JsonObject]:
        """Questions of all tasks, mixed by their weights."""
        numbers = random.Random(f"{seed} {held_out}")
        names = numbers.choices(self.rewards, weights=list(self.shares.values()), k=count)
        rows = []
        for index, name in enumerate(names):
            place = {"task": name, "seed": _seed_of(name, seed, held_out), "size": count}
            entry = self.dataset(**place)[index]
            prompt = [{"role": "user", "content": entry["question"]}]
            if self.system:
                prompt.insert(0, {"role": "system", "content": self.system})
            reference = self._to_reply(entry["answer"])
            rows.append({"prompt": prompt, **place, "index": index, "reference": reference})
        return rows

    def _to_reply(self, answer: str | None) -> str | None:
        """A completion with this answer, which SFT can show a model; None without an answer."""
        if answer is None or self.tag is None:
            return answer
        return f"<{self.tag}>{answer}</{self.tag}>"

    def make(self) -> "Question":
        return Question(self)

    def _make_dataset(self, task: str, seed: int, size: int) -> Any:
        """The package's dataset of a task; ConfigError for settings that it refuses."""
        from reasoning_gym import create_dataset

        try:
            return create_dataset(task, seed=seed, size=size, **self.settings[task])
        except (TypeError, ValueError, AssertionError) as error:
            raise ConfigError(
                Fault(
                    where=f"environment.tasks.{task}",
                    found=f"{short_text(self.settings[task])}: {describe(error)}",
                    expected="settings that the task takes",
                    fix=f'python -c "import reasoning_gym; help(reasoning_gym.create_dataset'
                    f"('{task}').config)\" shows them",
                )
            ) from error


class Question:
    """One question, answered in one turn."""

    def __init__(self, source: ReasoningGym):
        self._source = source
        self._answer: str | None = None

    def reset(self, task: str, seed: int, size: int, index: int, **row: object) -> None:
        self._task = task
        self._dataset = self._source.dataset(task=task, seed=seed, size=size)
        self._question = self._dataset[index]
        self._answer = None

    def respond(self, message: TurnDict) -> None:
        text = text_of([message])
        tag = self._source.tag
        if tag is None:
            self._answer = text.strip()
            return
        begin = text.rpartition(f"<{tag}>")[2]
        answer, end, _ = begin.partition(f"</{tag}>")
        self._answer = None
        if end:
            self._answer = answer.strip()

    def get_reward(self) -> dict[str, float]:
        score = float(self._dataset.score_answer(self._answer, self._question))
        return {self._task: score}


def _find_setting_faults(task: str, settings: Mapping[str, Any], config: str) -> Iterator[Fault]:
    """A fault for each setting that a task does not take, by the class of its settings."""
    signature = read_signature(config)
    if signature is None:
        return
    names = [WEIGHT, *(name for name in signature.parameters if name not in SET_BY_ROWS)]
    for key, value in settings.items():
        if key in names:
            continue
        where = f"environment.tasks.{task}"
        fix = f"{where}.{best_guess(str(key), names, '<setting>')}={value}"
        if key in SET_BY_ROWS:
            fix = f"environment.{key}={value}"
        yield Fault(
            where=f"{where}.{key}",
            found="no such setting of a task",
            expected=", ".join(names),
            fix=fix,
        )


def find_tasks() -> dict[str, str]:
    """The class of the settings of each task, as the package's sources register them.

    To import the package takes seconds. Empty where it is not installed.
    """
    package = find_spec("reasoning_gym")
    if package is None or not package.origin:
        return {}
    return _tasks_below(Path(package.origin).parent)


@lru_cache(maxsize=1)
def _tasks_below(root: Path) -> dict[str, str]:
    tasks = {}
    for file in sorted(root.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        constants = dict(CONSTANT.findall(text))
        module = ".".join(["reasoning_gym", *file.relative_to(root).with_suffix("").parts])
        for name, constant, settings in REGISTERED.findall(text):
            tasks[name or constants.get(constant, "")] = f"{module}.{settings}"
    return tasks


def _seed_of(task: str, seed: int, held_out: bool) -> int:
    """The seed of a task's questions.

    The package adds the index of a question to it, so that near seeds would give the same ones.
    """
    digest = hashlib.sha256(f"{task} {seed} {held_out}".encode()).digest()
    return int.from_bytes(digest[:4]) // 2


def _system_prompt(system: str | None) -> str:
    from reasoning_gym.utils import SYSTEM_PROMPTS

    return str(SYSTEM_PROMPTS.get(system, system or "")).strip()
