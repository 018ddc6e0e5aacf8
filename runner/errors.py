"""Everything that can end a run early, on one screen. No other module defines an exception of its own.

    RunnerError                 1  our own fault: a bug, its traceback is in log.txt
    ├── ConfigError             2  a key, a value or a combination that cannot work
    ├── DataError               2  rows that do not fit the trainer, or cannot be read
    ├── SickRun                 3  the training itself went wrong: a wrong reference, no finite loss
    ├── FolderError             4  the run folder is in use, of another format, or holds another run
    ├── EnvironmentFault        5  disk, memory, or a library that is missing
    └── Interrupted       130/143  stopped by SIGINT or another signal; the same command continues

The number is the exit code of the process; 0 means finished. An error carries faults, all that were found at once, and
each fault has four beats: where it is, what was found, what was expected, what to type.

A new error is a class here with its code and heading, made of its faults alone so that it can be pickled; a line in the
tree above and in README's table of exit codes; and a case in tests/test_errors.py.
"""

import errno
import functools
import importlib.util
import re
import signal
import sysconfig
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from runner.io.distribution import to_install
from runner.io.secrets import hidden
from runner.io.visible import visible_lines

DEEPER = "\n" + 14 * " "  # before a later line of a text, which must not look like a beat
# What libraries say where the system refuses this process memory or a thread.
REFUSED_BY_SYSTEM = ("can't start new thread", "Cannot allocate memory", "failed to map segment", "std::bad_alloc")
MAX_LETTERS = 500  # of a message of somebody else's that are shown
# Where files that are not the user's own lie.
OTHERS = [Path(__file__).parent, *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))]
LIST = re.compile(r"(?<![\w.'\"])[\w.]+=\[[^\]'\"<>]{0,999}\]")  # a word that zsh takes for a pattern of files


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, in four beats. ``where`` is a YAML path, a file and row, or a folder.

    A ``fix`` that begins with an equals sign is the value to give to ``where``. ``job`` says which of a sweep it is in.
    """

    where: str
    found: str
    expected: str = ""
    fix: str = ""
    job: str = ""

    def __post_init__(self) -> None:
        if self.fix.startswith("="):
            object.__setattr__(self, "fix", f"{self.where}{self.fix}")

    def __str__(self) -> str:
        fix = LIST.sub(r"'\g<0>'", self.fix)
        beats = [("found", self.found), ("expected", self.expected), ("type", fix), ("job", self.job)]
        lines = [f"  {self.where}"] + [f"    {name:<9} {text}" for name, text in beats if text]
        return "\n".join(line.replace("\n", DEEPER) for line in lines)


def to_fault(beats: Mapping[str, str], /, **values: object) -> Fault:
    """The fault of a row of a table, the braces of its beats filled in by values.

    >>> to_fault({"where": "rows", "found": "{count} rows", "fix": "=<more>"}, count=1)
    Fault(where='rows', found='1 rows', expected='', fix='rows=<more>', job='')
    """
    return Fault(**{beat: text.format(**values) for beat, text in beats.items()})


@functools.cache
def _read_faults(room: str) -> dict[str, dict[str, str]]:
    """The table of a room's faults; read for the first of them, so that a start without any does not wait for it."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # as in ``schema.text``, which no import leads to from here
    return yaml.load((Path(__file__).parent / room / "fault.yaml").read_bytes(), loader)


def fault(name: str, /, **values: object) -> Fault:
    """The fault that the table of a room has under a name, as ``run.held``; values fill in the braces of its beats.

    >>> fault("run.resumes_unsaved", run="outputs/a/b").found
    'outputs/a/b has no checkpoint'
    """
    room, _, own = name.partition(".")
    return to_fault(_read_faults(room)[own], **values)


class RunnerError(Exception):
    """The root of what the runner raises; prints as a heading and its faults, and sets the exit code."""

    code = 1
    heading = "internal error"

    def __init_subclass__(cls, heading: str, code: int = 1) -> None:
        cls.heading, cls.code = heading, code

    def __init__(self, faults: Fault | Iterable[Fault]):
        if isinstance(faults, str):  # which torch makes an error of that a worker of a loader raised
            faults = read_error(re.sub(r"(?m)^runner\.errors\.\w+: ", "", faults), self.code).faults
        self.faults: list[Fault] = [faults] if isinstance(faults, Fault) else list(faults)
        super().__init__(self.faults)

    @classmethod
    def refuse(cls, faults: Iterable[Fault]) -> None:
        """Raise this error with all the faults, each once, where there are any."""
        if faults := list(dict.fromkeys(faults)):
            raise cls(faults)

    def __str__(self) -> str:
        title = self.heading if (count := len(self.faults)) == 1 else f"{self.heading}: {count} faults"
        return visible_lines(hidden("\n".join([title, *map(str, self.faults)])))


class ConfigError(RunnerError, code=2, heading="config"): ...


class DataError(RunnerError, code=2, heading="data"): ...


class SickRun(RunnerError, code=3, heading="sick run"):
    """Raised while it trains; ``healthy`` is the last step to go on from, ``curable`` what a lower rate may help."""

    def __init__(self, faults: Fault | Iterable[Fault], healthy: int | None = None, curable: bool = False):
        super().__init__(faults)
        self.healthy = healthy
        self.curable = curable


class FolderError(RunnerError, code=4, heading="run folder"): ...


class EnvironmentFault(RunnerError, code=5, heading="environment"): ...


def name_jobs(jobs: Sequence[tuple[Sequence[str], Iterable[Fault]]]) -> list[Fault]:
    """The faults of a sweep's jobs, each once, with what is typed for the first job that has it and not for all.

    >>> [fault.job for fault in name_jobs([(["a=1", "b=1"], [Fault("a", "1")]), (["a=2", "b=1"], [])])]
    ['a=1']
    >>> [fault.fix for fault in name_jobs([([f"a={value}"], [Fault("a", "-", fix=f"b={value}")]) for value in (1, 2)])]
    ['b=1,2']
    >>> [fault.fix for fault in name_jobs([([f"a={value}"], [Fault("c", "-", fix="d=2")]) for value in (1, 2)])]
    ['d=2']
    """
    found: dict[Fault, dict[str, str]] = {}  # each with its jobs, and the value in each
    common = set.intersection(*(set(words) for words, _ in jobs)) if jobs else set()
    listed = [([word for word in words if word not in common], dict.fromkeys(faults)) for words, faults in jobs]
    swept = [{word.partition("=")[2] for word in own} for own, _ in listed]
    pairs = [(own, fault, values) for (own, faults), values in zip(listed, swept, strict=True) for fault in faults]
    fixed = {fault for _, fault, values in pairs if fault.fix.rpartition("=")[2] not in values}
    for own, fault, _ in pairs:
        key, _, value = fault.fix.rpartition("=")
        same = fault if fault in fixed else replace(fault, fix=f"{key}=")
        found.setdefault(same, {})[" ".join(own)] = "" if fault in fixed else value
    named = []
    for fault, values in found.items():
        first, more = next(iter(values)), f", and {len(values) - 1} more" if len(values) > 1 else ""
        job = "" if len(values) == len(jobs) else f"{first}{more}"
        named.append(replace(fault, fix=fault.fix + ",".join(dict.fromkeys(values.values())), job=job))
    return named


def check_library(module: str, where: str, package: str = "") -> None:
    """Raise EnvironmentFault where a library, which pip may call a ``package``, is not installed; none is imported."""
    if importlib.util.find_spec(module) is None:
        name, found = module.replace("_", "-"), "is not installed"
        raise EnvironmentFault(Fault(where, f"{name} {found}", f"the package {name}", to_install(package or name)))


def read_column(columns: Mapping[str, Any], name: str, fix: str) -> Sequence[Any]:
    """A column of the rows; raises DataError where they do not have it, with what to type."""
    if name not in columns:
        known = ", ".join(sorted(key for key, entry in columns.items() if isinstance(entry, Sequence)))
        raise DataError(Fault("dataset", f"the rows have no column {name}", f"one of {known}", fix))
    return columns[name]


class Interrupted(RunnerError, heading="interrupted"):
    """Raised after the last step was saved; ``code`` is that of the signal."""

    def __init__(self, faults: Fault | Iterable[Fault], signal_number: int = 15):
        super().__init__(faults)
        self.code = code_of(signal_number)


def read_error(text: str, code: int) -> RunnerError:
    """The error that was printed last in a text, with its faults; without one, an error of this exit code.

    >>> read_error(f"step 1\\n{DataError(Fault('rows.jsonl:3', 'no prompt', fix='=1'))}", 2).faults
    [Fault(where='rows.jsonl:3', found='no prompt', expected='', fix='rows.jsonl:3=1', job='')]
    """
    kinds: list[type[RunnerError]] = [RunnerError, *RunnerError.__subclasses__()]
    found = list(re.finditer(rf"^({'|'.join(kind.heading for kind in kinds)}).*(?=\n  \S)", text, re.MULTILINE))
    if not found:
        kind = next((kind for kind in kinds if kind.code == code), RunnerError)
        return kind(Fault("runner", "\n".join(text.splitlines()[-5:])))
    faults = []
    for block in re.split(r"\n  (?=\S)", text[found[-1].end() :].rstrip())[1:]:
        where, *beats = (part.replace(DEEPER, "\n") for part in re.split(r"\n    (found|expected|type|job) +", block))
        named = {"fix" if name == "type" else name: beat for name, beat in zip(beats[::2], beats[1::2], strict=True)}
        faults.append(Fault(where, **{"found": ""} | named))
    error = next(kind for kind in kinds if kind.heading == found[-1][1])(faults)
    error.code = code
    return error


def describe(error: BaseException) -> str:
    """The kind and the message of an exception on one line, so much as can be read; its message may fail, too.

    >>> describe(OSError("no\\nroom")), describe(KeyboardInterrupt())
    ('OSError: no room', 'KeyboardInterrupt')
    """
    try:
        message = " ".join(str(error).split())
    except Exception as other:
        message = f"its message raises {type(other).__name__}"
    more = "" if len(message) <= MAX_LETTERS else f"... ({len(message):,} letters)"
    return f"{type(error).__name__}: {message[:MAX_LETTERS]}{more}".removesuffix(": ")


def find_process_limit(error: BaseException) -> Fault | None:
    """The fault of an error by which the system has refused memory or a thread to this process; None of any other."""
    text = describe(error)
    is_errno = isinstance(error, OSError) and error.errno == errno.ENOMEM
    is_refused = isinstance(error, MemoryError) or any(words in text for words in REFUSED_BY_SYSTEM)
    if not (is_errno or is_refused):
        return None
    import resource  # which Windows has not

    memory, _ = resource.getrlimit(resource.RLIMIT_AS)
    threads, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = []
    if memory != resource.RLIM_INFINITY:
        limits.append(f"ulimit -v is {memory // 1024:,} kB")
    if threads != resource.RLIM_INFINITY:
        limits.append(f"ulimit -u is {threads:,}")
    found = f"{text} ({', '.join(limits)})" if limits else text
    fix = "ulimit -v unlimited, a larger ulimit -u, or more memory of the scheduler, and the same command"
    return Fault("system", found, "memory and threads for this process", fix)


def causes_of(error: BaseException) -> list[BaseException]:
    """An error and, one after the other, what it was raised from or amid."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) and cause not in chain:
        chain.append(cause)
    return chain


def own_place(error: BaseException) -> str:
    """The innermost line of the user's own code that an exception came through, as file:line; empty for none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    own = [(frame.filename, frame.lineno) for frame in frames if is_own(frame.filename)]
    if isinstance(error, SyntaxError) and error.filename and is_own(error.filename):
        own.append((error.filename, error.lineno))
    return f"{own[-1][0]}:{own[-1][1]}" if own else ""


def is_own(file: str | Path) -> bool:
    """True for a file of the user's own: neither the runner's, nor Python's, nor one of an installed package."""
    # Those of a user, and of the system below a virtual environment, are elsewhere.
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)
    return not is_installed and not any(Path(file).is_relative_to(other) for other in OTHERS)


def code_of(signal_number: int) -> int:
    """The exit code after a signal: 130 after Ctrl-C, 143 after any other that asks to stop."""
    return 130 if signal_number == signal.SIGINT else 143
