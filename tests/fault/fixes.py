"""No printed fix fails when it is typed.

Each is typed on top of the words for which it was printed.

    python tests/fault/fixes.py                 the fixes of every case of ``bad_input``
    python tests/fault/fixes.py number null     of those whose kind or name holds one of the words
    PYTHONPATH=tests/fault python -m pytest -p fixes -s tests/test_door.py    of these tests' output

A fix may offer several ways ("A, or B"); each is tried by itself, in a new folder with the files of
the case, as a user would: a word takes the place of the one with its key, "leave X out" takes the
word away, a command stands alone or is run in the shell before the same words. It fails where the
fault is there again, or another one that was not there.

Not typed, but counted: what holds a ``<placeholder>``, sentences, and commands that fetch something
or install it. Prints a line for each that fails and the counts; the exit code is 1 where one fails.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]

import bad_input
from bad_input_cases import BAD, STEP, Case
from warm import Warm

WORD = re.compile(r"[+~]*[\w./@-]+=.*|~[\w./]+|-m|--[\w-]+(=.*)?", re.DOTALL)
PYTHON = "python -m runner"
HERE = ("iconv", "mv", "jq", "sed", "chmod", "cp", "ls")  # commands that change nothing elsewhere
ELSEWHERE = ("pip", "hf", "git", "unzip", "cd", "df", "ulimit", "unset HF_HUB_OFFLINE")
# characters with a meaning for a shell
UNQUOTED = re.compile(r"""'[^']*'|"[^"]*"|\\.|([][(){}*?;&|<>$`!#])""")
TYPED = ("words", "command", "shell")
UNTYPED = ("placeholder", "sentence", "elsewhere")
SAME_WORDS = "<the same words>"
WHOLE = r"""(?:'[^']*'|"[^"]*"|<[^<>]*>|[^'"<>])"""  # a piece of text that is not cut inside


@dataclass(frozen=True)
class Told:
    """A fault as printed."""

    where: str
    found: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Way:
    """One way that a fix offers: its text, its kind, and what it makes of the typed words.

    ``shell`` is a command that is run before them, ``variables`` what it sets or takes out of the
    environment.
    """

    text: str
    kind: str
    words: tuple[str, ...] = ()
    shell: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    wrong: str = ""  # characters that a shell would interpret


def read_faults(text: str) -> list[Told]:
    """The faults of an error as it is printed."""
    faults: list[dict[str, str]] = []
    for line in text.splitlines():
        if re.match(r"  \S", line):
            faults.append({"where": line[2:]})
        elif (beat := re.match(r"    (found|type) +(.*)", line)) and faults:
            faults[-1].setdefault({"found": "found", "type": "fix"}[beat[1]], beat[2])
    return [Told(**fault) for fault in faults if "found" in fault]


def read_ways(told: Told, words: Sequence[str]) -> Iterator[Way]:
    """The ways that a fix offers after ``words`` were typed."""
    fix = re.sub(r"\s\s\([^()]*\)", "", told.fix)
    for text in re.split(rf"(?:, or|; or|;| or) (?={WHOLE}*$)", fix):
        yield read_way(told, text.strip(), tuple(words))


def read_way(told: Told, text: str, words: tuple[str, ...]) -> Way:
    """Read what one way asks for; "first this, then that" is both."""
    first, then, last = text.partition(", then ")
    if then:
        both = read_way(told, first, words), read_way(told, last, words)
        return (
            replace(both[0], text=text, words=both[1].words)
            if both[1].kind == "words"
            else Way(text, "sentence")
        )
    if "<" in text.replace(SAME_WORDS, "") and ">" in text.replace(SAME_WORDS, ""):
        return Way(text, "placeholder")
    text = text.replace("leave it out", f"leave {told.where.lstrip('~')} out")
    if left_out := re.fullmatch(r"leave ~?([\w.]+) out", text):
        return Way(text, "words", tuple(word for word in words if not is_of(word, left_out[1])))
    program = text.partition(" ")[0]
    if program in ELSEWHERE or text in ELSEWHERE or text.startswith("python -m runner.launch"):
        return Way(text, "elsewhere")
    if program in HERE:
        return Way(text, "shell", words, shell=text)
    if program == "unset":
        return Way(text, "shell", words, variables=dict.fromkeys(text.split()[1:], "unset"))
    if not WORD.fullmatch(program.strip("'\"")) and not text.startswith(PYTHON):
        return Way(text, "sentence")
    parts = shlex.split(text.replace(SAME_WORDS, shlex.join(words)))
    wrong = "".join(match[1] or "" for match in UNQUOTED.finditer(text.replace(SAME_WORDS, "")))
    if text.startswith(PYTHON):
        return Way(text, "command", tuple(parts[3:]), wrong=wrong)
    if not all(map(WORD.fullmatch, parts)):
        return Way(text, "sentence")
    typed_values = {word.partition("=")[2] for word in words if key_of(word) == told.where}
    # one word for another, or an unknown one
    values = {part.partition("=")[2] for part in parts}
    renames = values == typed_values or bool(
        re.search("no such (key|field)|has no such|no option", told.found)
    )
    # which keys below it take the place of
    is_list = any(value.startswith(("[", "{")) for value in typed_values)
    inside = is_list and any(key_of(part).startswith(f"{told.where}.") for part in parts)
    keys = {key_of(part) for part in parts} | ({told.where} if renames or inside else set())
    words = without(told, words)
    return Way(
        text,
        "words",
        (*(word for word in words if "=" not in word or key_of(word) not in keys), *parts),
        wrong=wrong,
    )


def without(told: Told, words: tuple[str, ...]) -> tuple[str, ...]:
    """The words without the unreadable one, or without the unknown flag and its value."""
    for place, word in enumerate(words):
        flag = word.replace("-", "_").partition("=")[0].lstrip("_")
        if told.where.startswith("--") and flag == told.where.lstrip("-") and word.startswith("-"):
            has_value = "=" not in word and not re.match("-|.*=", (*words, "-")[place + 1])
            return words[:place] + words[place + 1 + has_value :]
        if told.found.startswith(f"{word!r}: "):
            return words[:place] + words[place + 1 :]
    return words


def key_of(word: str) -> str:
    return re.split("[=@]", word.lstrip("+~"), maxsplit=1)[0]


def is_of(word: str, name: str) -> bool:
    """True for a word whose key is, or ends with, the key to leave out."""
    return key_of(word) == name or key_of(word).endswith(f".{name}")


def is_training(words: Sequence[str]) -> bool:
    """True for the words of a command that trains."""
    return (
        not words or words[0] == "train" or "=" in words[0] or words[0].startswith(("-", "~", "+"))
    )


def judge(told: Told, faults: Sequence[Told], way: Way, outcome: bad_input.Outcome) -> str:
    """The faults of a way with this outcome, given the faults before it."""
    if way.wrong:
        return f"without quotes: {way.wrong}"
    # which only show something
    if outcome.code in (0, 5) or way.shell.startswith(("sed -n", "ls ")):
        return ""
    again = read_faults(outcome.text)
    if any((fault.where, fault.found) == (told.where, told.found) for fault in again):
        return "the same fault again"
    known = {(fault.where, fault.found) for fault in faults}
    if new := [fault for fault in again if (fault.where, fault.found) not in known]:
        return f"another fault: {new[0].where}: {new[0].found} -> {new[0].fix}"
    return "" if again else f"exit {outcome.code}: {outcome.text.strip()[-300:]}"


class Typist:
    """Types the fixes of cases, each in the same folder made anew, and counts them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.warm = Warm(folder / "warm")

    def say(self, case: Case) -> bad_input.Outcome:
        """The output of a case, from behind the door if its fault is found there."""
        shutil.rmtree(self.folder / "case", ignore_errors=True)
        return bad_input.run(case, self.folder / "case", self.warm if case.late else None)

    def try_fixes(self, case: Case, count: Counts) -> None:
        faults = read_faults(self.say(case).text)
        for told in faults:
            for way in read_ways(told, case.words):
                wrong = self.type(case, faults, told, way) if way.kind in TYPED else ""
                count(f"{case.kind} {case.name}", case.words, told, way, wrong)

    def type(self, case: Case, faults: Sequence[Told], told: Told, way: Way) -> str:
        """The faults of a way when it is typed."""
        files = dict(case.files)
        problem = []
        if way.shell:

            def change(path: Path) -> None:
                done = subprocess.run(
                    way.shell, shell=True, cwd=path.parent, capture_output=True, text=True
                )
                problem.extend(
                    [f"exit {done.returncode}: {done.stderr.strip()}"] if done.returncode else []
                )

            files["typed.txt"] = change
        late = case.late or not is_training(way.words)
        extra = () if not is_training(way.words) else STEP if case.late else ("--dry-run",)
        words = (*extra, *way.words) if case.late else (*way.words, *extra)
        environment = {**case.environment, **way.variables}
        outcome = self.say(
            replace(case, words=words, files=files, environment=environment, late=late)
        )
        return problem[0] if problem else judge(told, faults, way, outcome)


class Counts:
    """The ways by their kind, and those that failed; prints each of these, or all."""

    def __init__(self, verbose: bool = False):
        self.kinds = Counter()
        self.failed = 0
        self.verbose = verbose

    def __call__(self, name: str, words: Sequence[str], told: Told, way: Way, wrong: str) -> None:
        self.kinds[way.kind] += 1
        self.failed += bool(wrong)
        if wrong or self.verbose:
            verdict = "MISS" if wrong else "ok"
            typed = shlex.join(words)[:300]
            text = (
                f"{verdict:<4} {name}: {typed}\n"
                f"       {told.where}: {told.found}\n       type {way.text}\n"
            )
            # whatever a test captures
            print(f"{text}       {way.kind} {wrong}", file=sys.__stdout__, flush=True)

    def __str__(self) -> str:
        untyped = ", ".join(f"{self.kinds[kind]} {kind}" for kind in UNTYPED)
        return (
            f"{sum(self.kinds[kind] for kind in TYPED)} ways typed, "
            f"{self.failed} failed; not typed: {untyped}"
        )


# --- As a plugin of pytest: the faults that tests meet --------------------------------------------


def pytest_configure(config) -> None:
    """Type whatever the command of a test prints at once, in the folder that the test has made."""
    import conftest

    from runner import __main__

    config.fixes = count = Counts(config.option.verbose > 1)
    real = __main__.main
    call = conftest.Command.__call__

    def main_and_fixes(argv=None) -> int:
        told: list[str] = []
        errors.RunnerError.__str__ = lambda error: told.append(text := as_text(error)) or text
        try:
            code = real(argv)
        finally:
            errors.RunnerError.__str__ = as_text
        if code and argv is not None:
            try_all(list(argv), "\n".join(told), lambda words: fork_main(real, words), count)
        return code

    def call_and_fixes(self, *words, code=0, door=conftest.DOOR, **variables):
        done = call(self, *words, code=code, door=door, **variables)
        if code and door == conftest.DOOR:

            def again(words: Sequence[str]) -> bad_input.Outcome:
                tried = self.warm.run(list(words), self.folder, self.environment | variables)
                return bad_input.Outcome(tried.returncode, tried.stdout + tried.stderr)

            try_all(list(words), done.stderr, again, count)
        return done

    from runner import errors

    as_text = errors.RunnerError.__str__
    __main__.main = main_and_fixes
    conftest.Command.__call__ = call_and_fixes


def pytest_terminal_summary(terminalreporter, config) -> None:
    terminalreporter.line(str(config.fixes))


def try_all(
    words: list[str], text: str, again: Callable[[Sequence[str]], bad_input.Outcome], count: Counts
) -> None:
    """Type the fixes of an error; files are left alone, because the test has made them."""
    faults = read_faults(text)
    for told in faults:
        for way in read_ways(told, words):
            is_tried = way.kind in TYPED and not way.shell and not way.variables
            extra = ["--dry-run"] if is_training(way.words) and "--dry-run" not in way.words else []
            wrong = judge(told, faults, way, again([*way.words, *extra])) if is_tried else ""
            count(os.environ.get("PYTEST_CURRENT_TEST", ""), words, told, way, wrong)


def fork_main(real: Callable[[list[str]], int], words: Sequence[str]) -> bad_input.Outcome:
    """The command in a fork of this process, in its working folder."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for number in (1, 2):
                    os.dup2(output.fileno(), number)
                sys.stdout, sys.stderr = (
                    os.fdopen(number, "w", closefd=False) for number in (1, 2)
                )
                code = real(list(words))
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return bad_input.Outcome(
            os.waitstatus_to_exitcode(status), output.read().decode(errors="replace")
        )


def main(words: list[str]) -> int:
    folder = Path(tempfile.mkdtemp(prefix="fixes-"))
    typist = Typist(folder)
    count = Counts("-v" in words)
    try:
        wanted = [word for word in words if word != "-v"]
        for case in BAD:
            if not case.skip and bad_input.is_wanted(case, wanted):
                typist.try_fixes(case, count)
    finally:
        typist.warm.close()
        shutil.rmtree(folder, ignore_errors=True)
    print(count)
    return 1 if count.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
