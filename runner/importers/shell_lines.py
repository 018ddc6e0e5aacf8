"""The lines of a shell script as words, with the variables that the script itself sets put in.

This is the subset of bash in which people write down a training command: comments, quotes, lines
that go on, variables with fallbacks, arrays, texts below a command, and arithmetic that only
multiplies and divides. No command is run. Variables of the shell stay as they are written.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from runner.config.conversion import MAX_DIGITS
from runner.errors import ConfigError, Fault
from runner.importers.shell_branches import Branches

# A comment of bash begins a word; what stands in quotes, or behind a backslash, is none.
COMMENT = re.compile(r"""(?m)('[^']*'|"(?:\\[\s\S]|[^"\\])*"|\\.)|(?:^|(?<=[\s;&|()]))#.*""")
# Quotes in which a backslash begins a letter that cannot be typed.
ESCAPED = re.compile(r"""(?<=[\s=])\$'((?:[^'\\]|\\.)*)'""")
ESCAPES = {"n": "\n", "t": "\t"}
# A text below a command, up to a word of its own.
HEREDOC = re.compile(r"""(?<!<)<<-?\s*(['"]?)(\w+)\1""")
# Such a text that becomes a variable, because it is printed into one or read into one.
PRINTED = re.compile(r"\s*(?:export )?(\w+)=.?\$\( ?cat\b")
READ = re.compile(r"\bread [^<]*?(\w+) *$")
ARRAY = re.compile(
    r"(?m)^\s*(?:(?:declare|local) -a )?(\w+)(\+?)=\(((?:\$\(\(?[^()]*\)?\)|[^()])*)\)"
)
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
# Variables that become several words: arrays, commands that are run, and flags without quotes.
WORDS = re.compile(
    r"(?<!\S)(?:"
    r'"?\$\{(\w+)\[[@*]\](?:\+"?\$\{\w+\[[@*]\]\}"?)?\}"?'  # "${FLAGS[@]}"
    r'|(?:eval\s+")?\$\{?(\w+)\}?"?'  # eval "$COMMAND", or $FLAGS
    r")(?![^\s;])"
)
COMMAND = re.compile(r"\$\((?:expr\s+([^()]*)|\(([^()]*)\)|[^()]*)\)")
VARIABLE = re.compile(r"\$\{(\w+)(?::?[-=]((?:[^{}]|\$\{[^{}]*\}){0,500}))?\}|\$(\w+)")
# The words for all arguments of the script, which are not in the file.
ALL_ARGUMENTS = ("$@", "$*", "${@}")
DECLARATIONS = ("export", "local", "readonly", "declare")
MAX_LETTERS = 100_000  # of a script, whose variables may hold one another
# Stands for a line break inside of quotes while the script is split into lines.
BREAK = "\0"


@dataclass(frozen=True)
class ShellLine:
    """The words of a statement as bash reads it, without the variables that it sets."""

    words: list[str]
    below: str  # the next line that is not empty


@dataclass
class Variables:
    """The variables that a script has set so far, and texts with their values put in."""

    values: dict[str, str] = field(default_factory=lambda: {"HOME": "~"})

    def fill(self, text: str) -> str:
        """A text with its variables replaced by their values."""
        return VARIABLE.sub(self._to_value, text)

    def _to_value(self, match: re.Match[str]) -> str:
        """The value of a variable that the script sets, or its fallback; others as written."""
        name = match[1] or match[3]
        fallback = match[2]
        if name in self.values:
            return self.values[name]
        if fallback is None:
            return match[0]
        return self.fill(fallback)

    def unfold(self, line: str) -> str:
        """A line in which variables that stand for several words are replaced by those words."""
        return WORDS.sub(self._to_words, line)

    def _to_words(self, match: re.Match[str]) -> str:
        array = match[1]
        value = self.values.get(array or match[2], match[0])
        # Of a plain variable only what holds flags; quotes may matter to anything else.
        if array or not value or re.search(r"(^|\s)--\w", value):
            return value
        return match[0]

    def compute(self, line: str) -> str:
        """A line in which commands are replaced by the numbers that they come to."""
        return COMMAND.sub(self._to_number, line)

    def _to_number(self, match: re.Match[str]) -> str:
        """The number that a command comes to, where it only multiplies and divides whole numbers.

        Any other command becomes ``$(name)``.
        """
        formula = re.sub(
            r"\$?\{?([A-Za-z_]\w*)\}?",
            lambda name: self.values.get(name[1], name[0]),
            match[1] or match[2] or "",
        )
        formula = re.sub(r"\s*\\?([*/])\s*", r"\1", formula.strip())
        if len(formula) > MAX_DIGITS or not re.fullmatch(r"\d+([*/][1-9]\d*)*", formula):
            command = re.search("[A-Za-z_]+", match[0])
            name = command[0] if command else "command"
            return f"$({name})"
        number = 1
        for sign, digits in re.findall(r"([*/]?)(\d+)", formula):
            if sign == "/":
                number //= int(digits)
            else:
                number *= int(digits)
        return str(number)


def read_lines(
    path: Path, text: str, variables: Variables, branches: Branches
) -> Iterator[ShellLine]:
    """The statements of a script that are run, in order.

    What they set is added to ``variables`` as they are read, and ``branches`` follows conditions.

    Raises ConfigError for a script that grows too long because its variables hold one another.
    """
    # A line goes on behind a backslash, and inside of quotes, where ``BREAK`` takes the place of
    # the line break. An array becomes a variable of one text.
    script = "\n".join([*_to_variables(text), ""])
    script = ESCAPED.sub(_without_escapes, script)
    script = COMMENT.sub(_without_comment, script)
    script = ARRAY.sub(_to_variable, script)
    lines = script.replace("\\\n", " ").split("\n")
    length = 0
    for index, raw_line in enumerate(lines):
        line = variables.unfold(raw_line.replace(BREAK, "\n"))
        # Measured before it is built: twenty lines that double a variable make a million letters.
        length += len(line)
        for variable in VARIABLE.finditer(line):
            length += len(variables.fill(variable[0]))
        if length > MAX_LETTERS:
            raise ConfigError(
                Fault(
                    where=str(path),
                    found=f"more than {MAX_LETTERS:,} letters, with what its variables stand for",
                    expected="a script that a person wrote",
                    fix="import its training command alone",
                )
            )
        try:
            statements = _split(variables.compute(line))
        except ValueError:
            continue  # a line of the shell's own, such as half of a quotation
        below = next(filter(str.strip, lines[index + 1 :]), "").lstrip()
        for statement in statements:
            words = [variables.fill(word) for word in statement if word not in ALL_ARGUMENTS]
            live_words = branches.follow(words)
            if live_words:
                yield ShellLine(_assign(live_words, variables), below)
            else:
                _leave_out(words, variables)


def _split(line: str) -> list[list[str]]:
    """The words of each statement of a line; the end of a branch of a case is one of its own."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";")
    lexer.whitespace_split = True
    lexer.commenters = ""
    statements: list[list[str]] = [[]]
    for word in lexer:
        if word == ";":
            statements.append([])
        elif word == ";;":
            statements += [[word], []]
        else:
            statements[-1].append(word)
    return statements


def _assign(words: list[str], variables: Variables) -> list[str]:
    """The words behind the variables that a statement sets, which are set.

    That of a loop is set for its first turn.
    """
    rest = list(words)
    if rest[:1] == ["for"] and rest[2:3] == ["in"] and rest[3:]:
        variables.values[rest[1]] = rest[3]
    if rest[0] in DECLARATIONS:
        del rest[0]
    while rest and ASSIGNMENT.fullmatch(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        variables.values[name] = value
    return rest


def _leave_out(words: list[str], variables: Variables) -> None:
    """Have a variable for flags be empty where it is set only in a branch that is not taken."""
    for word in words:
        if ASSIGNMENT.fullmatch(word):
            name, _, value = word.partition("=")
            if re.match(r"\s*--\w", value):
                variables.values.setdefault(name, "")


def _without_escapes(match: re.Match[str]) -> str:
    text = re.sub(r"\\(.)", lambda escape: ESCAPES.get(escape[1], escape[1]), match[1])
    return shlex.quote(text)


def _without_comment(match: re.Match[str]) -> str:
    quoted = match[1] or ""
    return quoted.replace("\\\n", " ").replace("\n", BREAK)


def _to_variable(array: re.Match[str]) -> str:
    """The assignment of a variable that holds all words of an array."""
    name = array[1]
    words = shlex.quote(array[3])
    if array[2]:  # += adds to the words that it has
        words = f'"${{{name}}} "{words}'
    assignment = f"{name}={words}".replace("\n", BREAK)
    return f"\n{assignment}"


def _to_variables(text: str) -> Iterator[str]:
    """The lines of a script, in which texts below a command are assignments of variables.

    A text that no variable gets is left out.
    """
    lines = iter(text.splitlines())
    for line in lines:
        start = None if line.lstrip().startswith("#") else HEREDOC.search(line)
        if start is None:
            yield line
            continue
        end = start[2]
        body = []
        for below in lines:
            if below.strip() == end:
                break
            body.append(below)
        printed = PRINTED.match(line)
        variable = printed or READ.search(line[: start.start()])
        if variable:
            value = "\n".join(body)
            yield f"{variable[1]}={shlex.quote(value)}"
        if printed:
            next(lines, None)  # the closing bracket of the command
