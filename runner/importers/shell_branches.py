"""The branches and loops of a shell script: which it takes, as far as its variables say.

A condition is decided by the variables that are set above it. No command is run, and no file is
looked at: such a condition is undecided. Then no branch is taken, or the one that the user says.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

# Something in a word that only the shell knows.
UNKNOWN = re.compile(r"\$[\w({#?@*]|`")
# A variable as a whole, which is empty where nothing sets it.
VARIABLE = re.compile(r"\$\w+|\$\{\w+\}")
# An argument of the script.
ARGUMENT = re.compile(r"\$[1-9]|\$\{[1-9]\}")
ASSIGNMENT = re.compile(r"(?:(?:export|local|declare|readonly)\s+)?[A-Za-z_]\w*\+?=")
COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__,
    "-ne": int.__ne__,
    "-gt": int.__gt__,
    "-ge": int.__ge__,
    "-lt": int.__lt__,
    "-le": int.__le__,
}
BRACKETS = ("[", "[[", "test", "]", "]]")


@dataclass
class Undecided:
    """A condition, or a case, that the script itself does not decide."""

    condition: str
    branches: int = 1
    # The number of the branch that is taken, 0 for none.
    chosen: int = 0
    # True where a branch that is not taken sets variables, or has flags.
    matters: bool = False


@dataclass
class _Block:
    """An ``if`` or a ``case`` that has begun."""

    is_reached: bool  # what stands around it is taken
    subject: str | None = None  # of a case
    number: int = 0  # of the branch that it is in
    was_taken: bool = False
    is_live: bool = False
    undecided: Undecided | None = None


@dataclass
class Branches:
    """The branches that a script is in, with those that the user chose, by their numbers."""

    choices: Sequence[int] = ()
    undecided: list[Undecided] = field(default_factory=list)
    # What the variable of each loop stands for, turn by turn.
    loops: dict[str, str] = field(default_factory=dict)
    _blocks: list[_Block] = field(default_factory=list)

    @property
    def is_live(self) -> bool:
        """True where all branches around the present line are taken."""
        return all(block.is_live for block in self._blocks)

    def follow(self, words: list[str]) -> list[str]:
        """The words of a statement that are run; empty where it is not, or only branches."""
        word = words[0] if words else ""
        if word == "if":
            self._open(None)
            self._enter(_until_then(words[1:]))
            return self.follow(words[words.index("then") :]) if "then" in words else []
        if word == "case" and words[-1:] == ["in"]:
            self._open(" ".join(words[1:-1]))
            return []
        if self._blocks:
            block = self._blocks[-1]
            if block.subject is not None:
                return self._follow_case(block, words)
            if word == "elif":
                self._enter(_until_then(words[1:]))
                return self.follow(words[words.index("then") :]) if "then" in words else []
            if word == "else":
                self._enter(None)
                return self.follow(words[1:])
            if word == "fi":
                self._blocks.pop()
                return []
        if word in ("then", "do"):
            return self.follow(words[1:])
        return self._run(words)

    def _run(self, words: list[str]) -> list[str]:
        """The words, if they are run; of those that are not, it is noted whether they matter."""
        if self.is_live:
            if words[:1] == ["for"] and words[2:3] == ["in"]:
                self.loops[words[1]] = " ".join(words[3:])
            return words
        has_effect = bool(words) and bool(ASSIGNMENT.match(words[0]))
        if has_effect or any(word.startswith("--") for word in words):
            for block in self._blocks:
                if block.undecided and block.is_reached:
                    block.undecided.matters = True
        return []

    def _open(self, subject: str | None) -> None:
        self._blocks.append(_Block(is_reached=self.is_live, subject=subject))

    def _enter(self, condition: list[str] | None) -> None:
        """Begin the next branch, whose condition this is; that of ``else`` has none."""
        block = self._blocks[-1]
        block.number += 1
        if block.undecided:
            block.undecided.branches = block.number
            block.is_live = block.number == block.undecided.chosen
            return
        if block.was_taken or not block.is_reached:
            block.is_live = False
            return
        answer = True if condition is None else decide(condition)
        self._take(block, answer, "if " + " ".join(condition or ()))

    def _take(self, block: _Block, answer: bool | None, condition: str) -> None:
        """Enter a branch by the answer to its condition, which may be undecided."""
        if answer is None:
            position = len(self.undecided)
            chosen = self.choices[position] if position < len(self.choices) else 0
            block.undecided = Undecided(condition, branches=block.number, chosen=chosen)
            self.undecided.append(block.undecided)
            block.is_live = block.number == chosen
            return
        block.is_live = answer
        block.was_taken = answer

    def _follow_case(self, block: _Block, words: list[str]) -> list[str]:
        """The words of a statement in a case that are run."""
        word = words[0] if words else ""
        if word == "esac":
            self._blocks.pop()
            return []
        if word == ";;":
            block.is_live = False
            return []
        patterns = re.fullmatch(r"\(?([^()]*)\)", word)
        if patterns:
            self._enter_case(block, patterns[1].split("|"))
            return self.follow(words[1:]) if words[1:] else []
        if word in ("then", "do"):
            return self.follow(words[1:])
        return self._run(words)

    def _enter_case(self, block: _Block, patterns: list[str]) -> None:
        """Begin the branch of a case for these patterns."""
        block.number += 1
        subject = block.subject or ""
        if block.undecided:
            block.undecided.branches = block.number
            block.is_live = block.number == block.undecided.chosen
        elif block.was_taken or not block.is_reached:
            block.is_live = False
        elif UNKNOWN.search(subject):
            self._take(block, None, f"case {subject}")
        else:
            matches = any(fnmatchcase(subject, pattern.strip()) for pattern in patterns)
            self._take(block, matches, subject)


def _until_then(words: list[str]) -> list[str]:
    if "then" in words:
        return words[: words.index("then")]
    return words


# --- Conditions -----------------------------------------------------------------------------------


def decide(words: Sequence[str]) -> bool | None:
    """The answer to a condition whose variables are filled in; None where nobody can know."""
    for operators, is_enough in ((("||", "-o"), True), (("&&", "-a"), False)):
        for index, word in enumerate(words):
            if word in operators and 0 < index < len(words) - 1:
                answers = (decide(words[:index]), decide(words[index + 1 :]))
                if is_enough in answers:
                    return is_enough
                return None if None in answers else not is_enough
    parts = [word for word in words if word not in BRACKETS]
    if parts[:1] == ["!"]:
        answer = decide(parts[1:])
        return None if answer is None else not answer
    if len(parts) == 1:
        return _decide_word(parts[0], is_tested=len(parts) != len(words))
    if len(parts) == 2:
        return _decide_emptiness(parts[0], parts[1])
    if len(parts) == 3:
        return _compare(parts[0], parts[1], parts[2])
    return None


def _decide_word(word: str, *, is_tested: bool) -> bool | None:
    """The answer of a word alone: a command, or in brackets a text, which is empty or not."""
    if word in ("true", "false") and not is_tested:
        return word == "true"
    if UNKNOWN.search(word) or not is_tested:
        return None
    return bool(word)


def _decide_emptiness(operator: str, word: str) -> bool | None:
    """The answer of ``-z`` and ``-n``; a variable that nothing sets is empty."""
    if operator not in ("-z", "-n"):
        return None
    if VARIABLE.fullmatch(word):
        word = ""
    elif UNKNOWN.search(word):
        return None
    return bool(word) == (operator == "-n")


def _compare(left: str, operator: str, right: str) -> bool | None:
    """The answer of a comparison of two texts, or of two numbers.

    An argument that has to be given for something else, as in ``$1 != slurm``, is not given.
    """
    if ARGUMENT.fullmatch(left) and operator == "!=":
        left = ""
    if UNKNOWN.search(left) or UNKNOWN.search(right):
        return None
    if operator in ("=", "=="):
        return fnmatchcase(left, right)
    if operator == "!=":
        return not fnmatchcase(left, right)
    compare = COMPARISONS.get(operator)
    if compare and left.isdigit() and right.isdigit():
        return compare(int(left), int(right))
    return None
