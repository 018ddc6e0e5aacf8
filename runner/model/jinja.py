"""Chat templates as text: which ship, where one is, and whether it renders.

The tokenizer that will use one is not needed.

The environment is that of transformers: a sandbox, with its extensions and functions. A sandbox
bounds neither time nor memory, so that a template is tried in a process of its own, which the
system ends.
"""

import functools
import json
import mmap
import os
import re
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from runner.errors import ConfigError, Fault
from runner.io.files import JsonObject, shipped
from runner.io.filetype import undecodable
from runner.model import faults
from runner.schema.did_you_mean import best_guess
from runner.schema.source import find_module
from runner.schema.text import to_override

SHELF = Path(__file__).parent / "template"
KEY = "model.tokenizer.chat_template"
ANSWER = "probe"
# The marks around turns in templates of families.
MARK = re.compile(r"<[|｜][^<>\s]+[|｜]>|<\|\w+>|<\w+\|>|<(?:start|end)_of_\w+>")
# CPU, memory and text of one exchange; the longest templates take a tenth of each.
MAX_SECONDS = 2
MAX_MEGABYTES = 256
MAX_LETTERS = 1_000_000
GRANTED = f"{MAX_SECONDS} s, {MAX_MEGABYTES} MB or {MAX_LETTERS:,} letters"
MAX_WAIT = 60  # seconds in which a text must come, whatever the CPU does
PROBE = [{"role": "user", "content": "?"}, {"role": "assistant", "content": ANSWER}]
# The same with contents in parts, as templates of models that see want them.
PROBE_IN_PARTS = [turn | {"content": [{"type": "text", "text": turn["content"]}]} for turn in PROBE]


# --- Templates by name --------------------------------------------------------------------------


def template_names() -> list[str]:
    """The templates that ship, as ``chat_template`` names them."""
    return sorted(file.stem for file in SHELF.glob("*.jinja"))


def family_files() -> dict[str, Path]:
    """TRL's templates by families of models; its trainers find by themselves those for training."""
    module = find_module("trl")
    files: list[Path] = []
    for folder in module.folders if module else ():
        files += Path(folder).glob("chat_templates/*.jinja")
    return {file.stem: file for file in sorted(files) if not file.stem.endswith("_training")}


def no_template() -> Fault:
    """The fault of chats without a template."""
    names = ", ".join(template_names())
    return Fault(
        where=KEY,
        found="the rows are chats, but the tokenizer has no chat template",
        expected=f"one of {names}, or the path of a .jinja file",
        fix="=plain",
    )


def read_template(name: str) -> str:
    """The text of a template by its name or file.

    Names are ours (``plain``, ``chatml``, ``react``, ``hermes``) or those of TRL's families.
    """
    families = family_files()
    if name.endswith(".jinja"):
        file = Path(shipped(name))
    else:
        file = families.get(name, SHELF / f"{name}.jinja")
    names = ", ".join(template_names())
    if not file.is_file():
        similar = best_guess(name, [*template_names(), *families, "plain"], cutoff=0)
        trl_names = ", ".join(families)
        raise ConfigError(
            Fault(
                where=KEY,
                found=f"no template {name}",
                expected=f"one of {names}, or of TRL's {trl_names}, or the path of a .jinja file",
                fix=f"={similar}",
            )
        )
    check_length(file)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        finding = undecodable(error.object, str(file))
        raise ConfigError(faults.other_bytes(file, finding, "UTF-8")) from error
    if not text.strip():
        raise ConfigError(
            Fault(
                where=KEY,
                found=f"{name} is empty",
                expected=f"one of {names}, or the path of a .jinja file",
                fix="=plain",
            )
        )
    return text


def check_length(file: Path) -> None:
    """Raise ConfigError for a file that is too large for a template."""
    size = file.stat().st_size
    if size > MAX_LETTERS:
        raise ConfigError(
            Fault(
                where=KEY,
                found=f"{file.name} has {size:,} bytes",
                expected=f"a template of at most {MAX_LETTERS:,}",
                fix="=chatml",
            )
        )


# --- Templates that work ------------------------------------------------------------------------

# What this process has rendered: a sweep, and the runs forked from it, ask for the same template
# again and again.
_rendered: dict[tuple[str, str], "RenderedProbe"] = {}


@dataclass(frozen=True)
class RenderedProbe:
    """One exchange as a template writes it, or the error that it raises and its line."""

    text: str = ""
    error: str | None = None
    line: int | None = None


def find_template_faults(
    text: str,
    name: str,
    end: str | None,
    tokens: Mapping[str, str],
    *,
    chosen: bool,
    vocabulary: Collection[str] = (),
) -> list[Fault]:
    """Faults of a template, found by rendering one exchange: the answer must be in it.

    ``name`` is its file.

    One that was ``chosen`` must close the answer with the tokenizer's ``end``, where that is known;
    and one of a family write marks that are of the ``vocabulary``. In others, they may be words.
    """
    key = (text, json.dumps(dict(tokens), sort_keys=True))
    probe = _rendered.get(key) or _render_apart(text, tokens)
    if probe is None:
        return [faults.costly_template(name, GRANTED, "one exchange")]
    _rendered[key] = probe
    if probe.error is not None:
        file_line = f"{name}, line {probe.line}" if probe.line else name
        fix = "=chatml"
        if probe.line:
            fix = f"mend that line, or {KEY}=chatml"
        return [
            Fault(
                where=KEY,
                found=f"{file_line}: {probe.error}",
                expected="a Jinja template that renders",
                fix=fix,
            )
        ]
    _, answer, behind = probe.text.rpartition(ANSWER)
    if not answer:
        return [
            Fault(
                where=KEY,
                found=f"{name} leaves out what the assistant says",
                expected="a chat template",
                fix="=chatml, or another one",
            )
        ]
    if not chosen:
        return []
    if vocabulary and name in family_files():
        marks = dict.fromkeys(MARK.findall(probe.text))
        missing = [mark for mark in marks if mark not in vocabulary]
        if missing:
            return [_missing_marks(name, missing, end, behind)]
    if end and end not in behind:
        found = f"{name} does not end an answer with {end}"
        return [
            Fault(
                where=KEY,
                found=f"{found}, so the model would never learn to stop",
                expected="the end token behind each answer",
                fix=f"model.tokenizer.eos_token=<the mark it ends with>, or {KEY}=plain",
            )
        ]
    return []


def _missing_marks(name: str, missing: list[str], end: str | None, behind: str) -> Fault:
    """The fault of a template whose marks are no tokens.

    The last mark behind an answer is the one that should end texts.
    """
    fix = to_override("model.tokenizer.add_special_tokens", missing)
    last_marks = MARK.findall(behind)[-1:]
    if last_marks and last_marks[0] != end:
        fix += f" {to_override('model.tokenizer.eos_token', last_marks[0])}"
    return Fault(
        where=KEY,
        found=f"{name} writes {', '.join(missing)}, which are not tokens of the tokenizer",
        expected="a token for each of these marks",
        fix=fix,
    )


# --- Rendering within limits --------------------------------------------------------------------


def _render_apart(text: str, tokens: Mapping[str, str]) -> RenderedProbe | None:
    """One exchange as a template writes it in a process of its own.

    None where it takes more than is granted.
    """
    import jinja2.sandbox  # noqa: F401  once, rather than in each fork

    shared = mmap.mmap(-1, 8 * MAX_LETTERS)  # by the fork that renders it

    def attempt() -> Iterator[str]:
        try:
            probe = RenderedProbe(render(text, tokens))
        except MemoryError:
            raise
        except Exception as error:  # a template computes, and can fail in any way
            line = getattr(error, "lineno", None)
            probe = RenderedProbe(error=str(error)[:300], line=line)
        write_shared(shared, asdict(probe))
        yield probe.text

    excess = find_excess(attempt())
    written = read_shared(shared)
    if not isinstance(written, dict) or excess is not None:
        return None
    return RenderedProbe(**written)


def write_shared(shared: mmap.mmap, value: object) -> None:
    """Write a value into memory that this fork shares with the process that waits for it.

    A line end closes the JSON, which has none, so that nobody reads the rest of the memory.
    """
    shared.write(json.dumps(value).encode() + b"\n")


def read_shared(shared: mmap.mmap) -> object:
    """The value that a fork has written; None if it could not write all of it."""
    line = shared.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def find_excess(texts: Iterable[str]) -> int | None:
    """The index of the first text that takes more to be made than is granted for one.

    None where none does.

    They are made in a fork, which the system ends, since no loop, product or power inside of Python
    could be stopped. A minute without a text for another reason ends the search.
    """
    # Imported before the fork, in which a lock on imports of another thread would never open.
    import resource  # noqa: F401  which Windows has not

    made = mmap.mmap(-1, 8)  # the number of texts so far, which the fork shares
    child = os.fork()
    if child == 0:
        code = 2
        try:
            _limit_process()
            for number, text in enumerate(_timed(texts), start=1):
                if len(text) > MAX_LETTERS:
                    raise MemoryError
                made[:] = number.to_bytes(8)
            code = 0
        except MemoryError:
            code = 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # Too much memory or text, too much CPU, or killed by the system for its memory or its stack.
    if code in (1, -signal.SIGPROF, -signal.SIGKILL, -signal.SIGSEGV):
        return int.from_bytes(made[:])
    return None


def _limit_process() -> None:
    """Bound the memory of this process, and have the signals of its clocks end it."""
    import resource

    for clock in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(clock, signal.SIG_DFL)
    limits = {resource.RLIMIT_CORE: 0}
    with suppress(FileNotFoundError):  # where the system is no Linux, time alone is bounded
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        bytes_used = pages * resource.getpagesize()
        limits[resource.RLIMIT_AS] = bytes_used + MAX_MEGABYTES * 2**20
    for kind, limit in limits.items():
        with suppress(ValueError):  # the user's own limit is lower
            resource.setrlimit(kind, (limit, limit))


def _timed(texts: Iterable[str]) -> Iterator[str]:
    """The texts, before each of which the clocks of this process are set anew."""
    iterator = iter(texts)
    while True:
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        signal.alarm(MAX_WAIT)
        try:
            text = next(iterator)
        except StopIteration:
            return
        yield text


# --- Jinja as transformers sets it up -----------------------------------------------------------


@functools.lru_cache(maxsize=8)
def compile_template(text: str) -> Any:
    """A template in the sandbox of transformers; raises what Jinja raises."""
    from jinja2 import TemplateError, ext, nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(ext.Extension):  # type: ignore[misc]
        """The block around what the assistant says, which only a tokenizer needs to notice."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: object, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, ext.loopcontrols],
        optimized=False,
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    # Jinja evaluates what is made of constants alone while it compiles, used or not, and passes
    # over a lack of memory.
    for node in environment.parse(text).find_all((nodes.BinExpr, nodes.Filter)):
        if any(node.find_all((nodes.Name, nodes.Call))):
            continue
        constant = nodes.Template([nodes.Output([node])])
        with suppress(
            ArithmeticError, AttributeError, LookupError, TypeError, ValueError, TemplateError
        ):
            environment.from_string(constant).render()
    return environment.from_string(text)


def render(text: str, tokens: Mapping[str, str]) -> str:
    """One exchange as a template writes it; raises what Jinja and its sandbox raise."""
    template = compile_template(text)
    arguments: JsonObject = {**tokens, "tools": None, "documents": None}
    arguments["add_generation_prompt"] = False
    rendered: str
    # A template of a model that sees may take a text alone all the same.
    wants_parts = re.search("['\"]type['\"]", text)
    if wants_parts:
        with suppress(Exception):
            rendered = template.render({**arguments, "messages": PROBE})
            if ANSWER in rendered:
                return rendered
    arguments["messages"] = PROBE_IN_PARTS if wants_parts else PROBE
    rendered = template.render(arguments)
    return rendered
