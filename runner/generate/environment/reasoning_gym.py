"""Tasks of the package reasoning-gym, made from a seed and scored by the package itself."""

import hashlib
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from runner.errors import ConfigError, Fault, describe
from runner.io.files import JsonObject
from runner.io.turns import TurnDict, text_of
from runner.schema.did_you_mean import best_guess
from runner.schema.literal import to_text
from runner.schema.read import Parameter, read_signature
from runner.schema.text import short_text
from runner.schema.type import shortened

Tasks: TypeAlias = dict[str, str]  # their names, with the class of the settings of each

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
        if not all(isinstance(name, str) for name in tasks):
            return  # its type is refused
        yield from _find_task_faults(tasks, configs)
        if not isinstance(tasks, Mapping):
            return
        for name, task_settings in tasks.items():
            if name in configs and isinstance(task_settings, Mapping):
                yield from _find_setting_faults(name, task_settings, configs[name])
        yield from _find_weight_faults(tasks)

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


def _find_task_faults(tasks: list[str] | Mapping[str, Any], configs: Tasks) -> Iterator[Fault]:
    """A fault for each name that is no task of the package, or stands there twice."""
    likeliest = {}
    for name in tasks:
        guess = best_guess(str(name), configs)
        if guess:
            likeliest[name] = guess
    fix = f"={to_text(_correct(tasks, likeliest))}"
    some = f"some of its {len(configs)} tasks: {shortened(list(configs))}"
    if not tasks:
        yield Fault(
            where="environment.tasks",
            found="no task",
            expected=some,
            fix=fix,
        )
    counts = Counter(list(tasks))
    for name, count in counts.items():
        if name not in configs:
            yield Fault(
                where="environment.tasks",
                found=f"reasoning-gym has no task {name!r}",
                expected=likeliest.get(name, some),
                fix=fix,
            )
        elif count > 1 and isinstance(tasks, list):
            yield Fault(
                where="environment.tasks",
                found=f"{name} {count} times",
                expected="each task once, perhaps with a weight",
                fix=fix,
            )


def _correct(tasks: list[str] | Mapping[str, Any], likeliest: Tasks) -> list[str] | dict[str, Any]:
    """The tasks by the names that were probably meant, or one that there is."""
    if isinstance(tasks, list):
        names = dict.fromkeys(likeliest.values())
        return list(names) or [DEFAULT_TASK]
    corrected = {}
    for name, guess in likeliest.items():
        corrected[guess] = tasks[name]
    return corrected or {DEFAULT_TASK: {}}


def _find_weight_faults(tasks: Mapping[str, Any]) -> Iterator[Fault]:
    """A fault for each share of the rows that is none, or for shares that are all 0."""
    weights = []
    for name, settings in tasks.items():
        weight = 1.0
        if isinstance(settings, Mapping):
            weight = settings.get(WEIGHT, weight)
        weights.append(weight)
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not 0 <= weight < math.inf:
            yield Fault(
                where=f"environment.tasks.{name}.{WEIGHT}",
                found=to_text(weight),
                expected="its share of the rows, a number that is not below 0",
                fix="=1",
            )
    if weights and not any(weights):
        yield Fault(
            where=f"environment.tasks.{next(iter(tasks))}.{WEIGHT}",
            found="0, as that of every other task",
            expected="a task that has rows",
            fix="=1",
        )


def _find_setting_faults(task: str, settings: Mapping[str, Any], config: str) -> Iterator[Fault]:
    """A fault for each setting that a task does not take, by the class of its settings."""
    signature = read_signature(config)
    if signature is None:
        return
    names = [WEIGHT, *(name for name in signature.parameters if name not in SET_BY_ROWS)]
    for key, value in settings.items():
        where = f"environment.tasks.{task}"
        if key in names:
            parameter = signature.parameters.get(key)
            if parameter and not _fits(value, parameter):
                yield Fault(
                    where=f"{where}.{key}",
                    found=to_text(value),
                    expected=str(parameter.type),
                    fix=f"leave {where}.{key} out",
                )
            continue
        fix = f"{where}.{best_guess(str(key), names, '<setting>')}={value}"
        if key in SET_BY_ROWS:
            fix = f"environment.{key}={value}"
        yield Fault(
            where=f"{where}.{key}",
            found="no such setting of a task",
            expected=", ".join(names),
            fix=fix,
        )


def _fits(value: object, parameter: Parameter) -> bool:
    """True for a value as the annotation says, or as the default is, which some contradict."""
    if isinstance(parameter.default, tuple) and isinstance(value, list):
        return True
    return parameter.type.accepts(value) or type(value) is type(parameter.default)


def find_tasks() -> Tasks:
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
