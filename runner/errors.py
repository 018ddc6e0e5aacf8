"""Everything that can end a run early, on one screen; no other module defines an exception.

    RunnerError                 1  our own fault: a bug, its traceback is in log.txt
    ├── ConfigError             2  a key, a value or a combination that cannot work
    ├── DataError               2  rows that do not fit the trainer, or cannot be read
    ├── SickRun                 3  the training itself went wrong: a wrong reference, no finite loss
    ├── FolderError             4  the run folder is in use, of another format, or holds another run
    ├── EnvironmentFault        5  disk, memory, or a library that is missing
    └── Interrupted       130/143  stopped by SIGINT or another signal; the same command continues

The number is the exit code of the process; 0 means finished. An error carries faults, all that were
found at once, and each fault has four beats: where it is, what was found, what was expected, what
to type.

An error goes to another process as the JSON of :meth:`RunnerError.to_dict`: in status.json, in the
file that torchrun reads, in the store of several machines, and in the file of ``runner.train``.

A new error is a class here with its code and heading: a direct subclass of RunnerError, since
:meth:`RunnerError.from_dict` and :func:`error_of_code` look among these, and made of its faults
alone, so that it can be pickled. It needs a line in the tree above and in README's table of exit
codes, and a case in tests/test_errors.py. No launcher has to know it: where several processes of a
run fail, ``launch.local`` reports the first error that is not a plain RunnerError.
"""

import contextlib
import errno
import importlib.util
import json
import re
import signal
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from runner.io.secrets import hidden
from runner.io.visible import visible_lines

# The first word of a command whose error another process waits for, with the file for it.
ERROR_FILE = "--error-file="
# Put before the later lines of a text, which must not look like a beat.
DEEPER = "\n" + 14 * " "
# Messages of libraries where the system refuses this process memory or a thread.
REFUSED_BY_SYSTEM = (
    "can't start new thread",
    "Cannot allocate memory",
    "failed to map segment",
    "std::bad_alloc",
)
MAX_LETTERS = 500  # shown of a message that is not ours
# A key with a list as its value, which zsh takes for a pattern of file names.
LIST = re.compile(r"(?<![\w.'\"])[\w.]+=\[[^\]'\"<>]{0,999}\]")


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, in four beats.

    A ``fix`` that begins with an equals sign is the value to give to ``where``.
    """

    where: str  # a YAML path, a file and row, or a folder
    found: str
    expected: str = ""
    fix: str = ""  # what to type
    job: str = ""  # which of a sweep it is in

    def __post_init__(self) -> None:
        if self.fix.startswith("="):
            object.__setattr__(self, "fix", f"{self.where}{self.fix}")

    def __str__(self) -> str:
        beats = {
            "found": self.found,
            "expected": self.expected,
            "type": LIST.sub(r"'\g<0>'", self.fix),
            "job": self.job,
        }
        lines = [f"  {self.where}"]
        for name, text in beats.items():
            if text:
                lines.append(f"    {name:<9} {text}")
        return "\n".join(line.replace("\n", DEEPER) for line in lines)


BEATS = [beat.name for beat in fields(Fault)]


class RunnerError(Exception):
    """The root of what the runner raises: it prints as a heading with faults, and has a code."""

    code = 1
    heading = "internal error"

    def __init_subclass__(cls, heading: str, code: int = 1) -> None:
        cls.heading = heading
        cls.code = code

    def __init__(self, faults: Fault | Iterable[Fault]):
        if isinstance(faults, str):  # torch hands on no more of an error of a loader's worker
            faults = _read_traceback(faults, self.heading)
        self.faults: list[Fault] = [faults] if isinstance(faults, Fault) else list(faults)
        super().__init__(self.faults)

    @classmethod
    def refuse(cls, faults: Iterable[Fault]) -> None:
        """Raise this error if there are faults, with each of them once."""
        unique = list(dict.fromkeys(faults))
        if unique:
            raise cls(unique)

    def __str__(self) -> str:
        title = self.heading
        if len(self.faults) != 1:
            title = f"{title}: {len(self.faults)} faults"
        return _shown("\n".join([title, *map(str, self.faults)]))

    def to_dict(self) -> dict[str, object]:
        """The error as JSON: its kind, its code, and the beats of each fault, without secrets."""
        records = []
        for fault in self.faults:
            beats = {beat: _shown(str(text)) for beat, text in asdict(fault).items()}
            records.append(beats)
        return {"kind": type(self).__name__, "code": self.code, "faults": records}

    @staticmethod
    def from_dict(record: Mapping[str, object]) -> "RunnerError":
        """The error of a record, which may be that of another machine, or damaged.

        >>> RunnerError.from_dict(DataError(Fault("rows.jsonl:3", "no prompt")).to_dict())
        DataError([Fault(where='rows.jsonl:3', found='no prompt', expected='', fix='', job='')])
        """
        kinds = {kind.__name__: kind for kind in RunnerError.__subclasses__()}
        kind = kinds.get(str(record.get("kind")), RunnerError)
        records = record.get("faults")
        if not isinstance(records, list):
            records = []
        faults = []
        for beats in records:
            if isinstance(beats, Mapping):
                texts = {beat: str(beats.get(beat, "")) for beat in BEATS}
                faults.append(Fault(**texts))
        error = kind(faults)
        code = record.get("code")
        if isinstance(code, int):
            error.code = code
        return error


class ConfigError(RunnerError, code=2, heading="config"): ...


class DataError(RunnerError, code=2, heading="data"): ...


class SickRun(RunnerError, code=3, heading="sick run"):
    """Raised while a run trains.

    ``healthy`` is the last step to go on from; ``curable`` is true where a lower rate may help.
    """

    def __init__(
        self, faults: Fault | Iterable[Fault], healthy: int | None = None, curable: bool = False
    ):
        super().__init__(faults)
        self.healthy = healthy
        self.curable = curable


class FolderError(RunnerError, code=4, heading="run folder"): ...


class EnvironmentFault(RunnerError, code=5, heading="environment"): ...


class Interrupted(RunnerError, heading="interrupted"):
    """Raised after the last step was saved; ``code`` is that of the signal."""

    def __init__(self, faults: Fault | Iterable[Fault], signal_number: int = 15):
        super().__init__(faults)
        self.code = code_of(signal_number)


def code_of(signal_number: int) -> int:
    """The exit code after a signal: 130 after Ctrl-C, 143 after any other that asks to stop."""
    return 130 if signal_number == signal.SIGINT else 143


def _shown(text: str) -> str:
    """A text as others may see it: without secrets, and with nothing that steers a terminal."""
    return visible_lines(hidden(text))


# --- Errors of other processes --------------------------------------------------------------------
def error_of(status: Mapping[str, object], code: int = RunnerError.code) -> RunnerError:
    """The error with which a run ended, by its status.json.

    A run of an earlier version, or one whose process was killed, has only a ``cause``. Then the
    heading with which that begins tells the kind, or else the exit ``code``.
    """
    record = status.get("error")
    if isinstance(record, Mapping):
        return RunnerError.from_dict(record)
    cause = str(status.get("cause"))
    first_line = cause.partition("\n")[0]
    for kind in RunnerError.__subclasses__():
        headings = (f"{kind.heading}: ", f"{kind.heading} (")  # with a count, with a process
        if first_line == kind.heading or first_line.startswith(headings):
            return kind(Fault("runner", cause))
    return error_of_code(code, cause)


def error_of_code(code: int, words: str) -> RunnerError:
    """An error of this exit code, where a process has left nothing but its last words."""
    fault = Fault("runner", words)
    for kind in RunnerError.__subclasses__():
        if kind.code == code and kind.code != RunnerError.code:
            return kind(fault)
    error = RunnerError(fault)
    error.code = code
    return error


_error_file: Path | None = None


def take_error_file(words: list[str]) -> None:
    """Take the word that names the file of :func:`hand_on` from a command, if there is one."""
    global _error_file
    if words and words[0].startswith(ERROR_FILE):
        _error_file = Path(words.pop(0).removeprefix(ERROR_FILE))


def hand_on(error: RunnerError) -> None:
    """Write an error, which is printed too, for a process that waits for this command."""
    if _error_file is not None:
        with contextlib.suppress(OSError):  # that process is gone
            _error_file.write_text(json.dumps(error.to_dict()), encoding="utf-8")


def _read_traceback(text: str, heading: str) -> list[Fault]:
    """The faults of an error that ends a traceback in a worker of torch's loaders.

    Torch makes the error again from the text of that traceback alone, so that the printed form of
    the faults is read here. The last heading counts: others may come before it, of what the error
    was raised from.
    """
    headings = re.finditer(
        rf"^[\w.]+: {re.escape(heading)}(: \d+ faults)?(?=\n  \S)", text, re.MULTILINE
    )
    ends = [match.end() for match in headings]
    if not ends:
        return [Fault("runner", "\n".join(text.splitlines()[-5:]))]
    end = max(ends)
    faults = []
    for block in re.split(r"\n  (?=\S)", text[end:].rstrip())[1:]:
        where, *parts = re.split(r"\n    (found|expected|type|job) +", block)
        beats = {"found": ""}
        for name, beat in zip(parts[::2], parts[1::2], strict=True):
            beats["fix" if name == "type" else name] = beat.replace(DEEPER, "\n")
        faults.append(Fault(where.replace(DEEPER, "\n"), **beats))
    return faults


# --- Faults of several jobs, and faults that many places find -------------------------------------
def name_jobs(jobs: Sequence[tuple[Sequence[str], Iterable[Fault]]]) -> list[Fault]:
    """The faults of a sweep's jobs, each once; a fault that not all jobs have names its first job.

    Of faults whose fix gives a value that is swept, the values of all jobs are joined.

    >>> jobs = [(["a=1", "b=1"], [Fault("a", "1")]), (["a=2", "b=1"], [])]
    >>> [fault.job for fault in name_jobs(jobs)]
    ['a=1']
    >>> jobs = [([f"a={value}"], [Fault("a", "-", fix=f"b={value}")]) for value in (1, 2)]
    >>> [fault.fix for fault in name_jobs(jobs)]
    ['b=1,2']
    >>> jobs = [([f"a={value}"], [Fault("c", "-", fix="d=2")]) for value in (1, 2)]
    >>> [fault.fix for fault in name_jobs(jobs)]
    ['d=2']
    """
    words_by_job = [set(words) for words, _ in jobs]
    common = set.intersection(*words_by_job) if jobs else set()
    findings: list[tuple[str, Fault]] = []  # the words that only some jobs have, and a fault of one
    unswept: set[Fault] = set()  # faults whose fix is no value of their job
    for words, faults in jobs:
        job_words = [word for word in words if word not in common]
        swept_values = {word.partition("=")[2] for word in job_words}
        for fault in dict.fromkeys(faults):
            findings.append((" ".join(job_words), fault))
            if fault.fix.rpartition("=")[2] not in swept_values:
                unswept.add(fault)

    values_by_fault: dict[Fault, dict[str, str]] = {}  # for each job, the swept value of the fix
    for job, fault in findings:
        value = ""
        if fault not in unswept:
            key, _, value = fault.fix.rpartition("=")
            fault = replace(fault, fix=f"{key}=")
        values_by_fault.setdefault(fault, {})[job] = value

    named = []
    for fault, values in values_by_fault.items():
        job = ""
        if len(values) < len(jobs):
            job = next(iter(values))
        if job and len(values) > 1:
            job += f", and {len(values) - 1} more"
        fix = fault.fix + ",".join(dict.fromkeys(values.values()))
        named.append(replace(fault, fix=fix, job=job))
    return named


def check_library(module: str, where: str) -> None:
    """Raise EnvironmentFault if a library is not installed; it is not imported."""
    if importlib.util.find_spec(module) is not None:
        return
    from runner.io.distribution import to_install  # it reads TOML

    name = module.replace("_", "-")
    raise EnvironmentFault(
        Fault(
            where=where,
            found=f"{name} is not installed",
            expected=f"the package {name}",
            fix=to_install(name),
        )
    )


def taken_port(port: int, error: OSError) -> Fault:
    """The fault of a port that cannot be listened on."""
    return Fault(
        where="port",
        found=f"{port}: {describe(error)}",
        expected="a free port",
        fix="port=0  (any free one)",
    )


def read_column(columns: Mapping[str, Any], name: str, fix: str) -> Sequence[Any]:
    """A column of the rows; raises DataError with this fix if the rows do not have it."""
    if name not in columns:
        names = sorted(key for key, column in columns.items() if isinstance(column, Sequence))
        raise DataError(
            Fault(
                where="dataset",
                found=f"the rows have no column {name}",
                expected=f"one of {', '.join(names)}",
                fix=fix,
            )
        )
    column: Sequence[Any] = columns[name]
    return column


# --- Exceptions of others -------------------------------------------------------------------------
def describe(error: BaseException) -> str:
    """The kind and the message of an exception on one line, shortened; its message may fail, too.

    >>> describe(OSError("no\\nroom")), describe(KeyboardInterrupt())
    ('OSError: no room', 'KeyboardInterrupt')
    """
    try:
        message = " ".join(str(error).split())
    except Exception as second_error:
        message = f"its message raises {type(second_error).__name__}"
    if len(message) > MAX_LETTERS:
        message = f"{message[:MAX_LETTERS]}... ({len(message):,} characters)"
    return f"{type(error).__name__}: {message}".removesuffix(": ")


def find_process_limit(error: BaseException) -> Fault | None:
    """The fault where the system has refused memory or a thread; None for any other error."""
    text = describe(error)
    is_errno = isinstance(error, OSError) and error.errno == errno.ENOMEM
    is_message = any(words in text for words in REFUSED_BY_SYSTEM)
    if not (is_errno or is_message or isinstance(error, MemoryError)):
        return None
    import resource  # Windows does not have it

    memory, _ = resource.getrlimit(resource.RLIMIT_AS)
    threads, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = []
    if memory != resource.RLIM_INFINITY:
        limits.append(f"ulimit -v is {memory // 1024:,} kB")
    if threads != resource.RLIM_INFINITY:
        limits.append(f"ulimit -u is {threads:,}")
    found = text
    if limits:
        found = f"{text} ({', '.join(limits)})"
    return Fault(
        where="system",
        found=found,
        expected="memory and threads for this process",
        fix="ulimit -v unlimited, a larger ulimit -u, or more memory of the scheduler, "
        "and the same command",
    )


def causes_of(error: BaseException) -> list[BaseException]:
    """An error, then what it was raised from or while handling, one after the other."""
    chain = [error]
    while True:
        cause = chain[-1].__cause__ or chain[-1].__context__
        if cause is None or cause in chain:
            return chain
        chain.append(cause)


def reason_of(error: Exception) -> str:
    """The first line of an error that is a reason: of pydantic's, only a count is before it."""
    reason, *details = str(error).splitlines() or [type(error).__name__]
    if details and "validation error" in reason:
        reason = details[0].strip().partition(" [type=")[0]
    return reason


def own_place(error: BaseException) -> str:
    """The innermost line of the user's own code that an exception came through, as file:line.

    Empty if it came through none.
    """
    from runner.io.own_code import is_own

    if isinstance(error, SyntaxError) and error.filename and is_own(error.filename):
        return f"{error.filename}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith("<") and is_own(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return ""
