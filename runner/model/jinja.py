"""Chat templates as text: which ship, where one is, and whether it renders, without the tokenizer that will use it.

The environment is that of transformers: a sandbox, with its extensions and functions. A sandbox bounds neither time nor
memory, so that a template is tried in a process of its own, which the system ends.
"""

import json
import mmap
import os
import re
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from runner.errors import ConfigError, Fault, fault
from runner.io.files import shipped
from runner.io.filetype import undecodable
from runner.schema.source import find_module
from runner.schema.text import nearest, to_override

SHELF = Path(__file__).parent / "template"
KEY = "model.tokenizer.chat_template"
ANSWER = "probe"
MARK = re.compile(r"<[|｜][^<>\s]+[|｜]>|<\|\w+>|<\w+\|>|<(?:start|end)_of_\w+>")  # of turns, in templates of families
# CPU, memory and text of one exchange; the longest templates take a tenth of each.
MAX_SECONDS, MAX_MEGABYTES, MAX_LETTERS = 2, 256, 1_000_000
GRANTED = f"{MAX_SECONDS} s, {MAX_MEGABYTES} MB or {MAX_LETTERS:,} letters"
PROBE = [{"role": "user", "content": "?"}, {"role": "assistant", "content": ANSWER}]
IN_PARTS = [turn | {"content": [{"type": "text", "text": turn["content"]}]} for turn in PROBE]


def template_names() -> list[str]:
    """The templates that ship, as ``chat_template`` names them."""
    return sorted(file.stem for file in SHELF.glob("*.jinja"))


def family_files() -> dict[str, Path]:
    """TRL's templates by families of models; its trainers find by themselves those for training."""
    folders = module.folders if (module := find_module("trl")) else ()
    files = sorted(file for folder in folders for file in Path(folder).glob("chat_templates/*.jinja"))
    return {file.stem: file for file in files if not file.stem.endswith("_training")}


def no_template() -> Fault:
    """The fault of chats without a template."""
    return fault("model.no_template", names=", ".join(template_names()))


def read_template(name: str) -> str:
    """The text of a template: one of ours (``plain``, ``chatml``, ``react``, ``hermes``), of TRL's, or in a file."""
    families = family_files()
    file = Path(shipped(name)) if name.endswith(".jinja") else families.get(name, SHELF / f"{name}.jinja")
    names = {"names": ", ".join(template_names()), "families": ", ".join(families)}
    if not file.is_file():
        near = nearest(name, [*template_names(), *families, "plain"], 0)[0]
        raise ConfigError(fault("model.unknown_template", name=name, near=near, **names))
    check_length(file)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        odd = undecodable(error.object, str(file))
        raise ConfigError(fault("model.other_bytes", path=file, odd=odd, expected="UTF-8")) from error
    if not text.strip():
        raise ConfigError(fault("model.empty_template", name=name, **names))
    return text


def check_length(file: Path) -> None:
    """Raise ConfigError for a file that is too large for a template."""
    if (size := file.stat().st_size) > MAX_LETTERS:
        raise ConfigError(fault("model.long_template", file=file, size=size, most=MAX_LETTERS))


def find_template_faults(
    text: str, name: str, end: str | None, tokens: Mapping[str, str], *, chosen: bool, vocabulary: Collection[str] = ()
) -> list[Fault]:
    """Faults of a template, found by rendering one exchange with it: the answer must be in it. ``name`` is its file.

    One that was ``chosen`` must close the answer with the tokenizer's ``end``, where that is known; and one of a family
    write marks that are of the ``vocabulary``. In others, they may be words.
    """
    if (tried := _try(text, tokens)) is None:
        return [fault("model.costly_template", name=name, granted=GRANTED, text="one exchange")]
    if "error" in tried:
        line = f", line {tried['line']}" if tried["line"] else ""
        fix = f"mend that line, or {KEY}=chatml" if line else "=chatml"
        return [fault("model.failing_template", name=name, line=line, error=tried["error"], fix=fix)]
    _, answer, behind = tried["rendered"].rpartition(ANSWER)
    if not answer:
        return [fault("model.template_without_answer", name=name)]
    marks = dict.fromkeys(MARK.findall(tried["rendered"])) if vocabulary and chosen and name in family_files() else ()
    if lacking := [mark for mark in marks if mark not in vocabulary]:
        fix = to_override("model.tokenizer.add_special_tokens", lacking)
        last = (mark for mark in MARK.findall(behind)[-1:] if mark != end)
        fix += "".join(f" {to_override('model.tokenizer.eos_token', mark)}" for mark in last)
        return [fault("model.template_with_marks", name=name, marks=", ".join(lacking), fix=fix)]
    return [fault("model.template_without_end", name=name, end=end)] if chosen and end and end not in behind else []


def _try(text: str, tokens: Mapping[str, str]) -> dict[str, Any] | None:
    import jinja2.sandbox  # noqa: F401  once, rather than in each fork

    shared = mmap.mmap(-1, 8 * MAX_LETTERS)  # by the fork that renders it

    def attempt() -> Iterator[str]:
        try:
            tried: dict[str, Any] = {"rendered": render(text, tokens)}
        except MemoryError:
            raise
        except Exception as error:  # a template computes, and can fail in any way
            tried = {"error": str(error)[:300], "line": getattr(error, "lineno", None)}
        shared.write(json.dumps(tried).encode())
        yield tried.get("rendered", "")

    excess = find_excess(attempt())
    written = shared[:].rstrip(b"\0")
    return json.loads(written) if written and excess is None else None


def find_excess(texts: Iterable[str]) -> int | None:
    """The place of the first text that takes more to be made than is granted for one; None where none does.

    They are made in a fork, which the system ends, since no loop, product or power inside of Python could be stopped. A
    minute without a text for another reason ends the search.
    """
    import resource  # which Windows has not

    place = mmap.mmap(-1, 8)  # which the fork shares
    child = os.fork()
    if child == 0:
        code = 2
        try:
            for bell in (signal.SIGALRM, signal.SIGPROF):
                signal.signal(bell, signal.SIG_DFL)
            limits = {resource.RLIMIT_CORE: 0}
            with suppress(FileNotFoundError):  # where the system is no Linux, time alone is bounded
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                limits[resource.RLIMIT_AS] = pages * resource.getpagesize() + MAX_MEGABYTES * 2**20
            for kind, limit in limits.items():
                with suppress(ValueError):  # the user's own limit is lower
                    resource.setrlimit(kind, (limit, limit))
            made = iter(texts)
            for number in count(1):
                signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
                signal.alarm(60)
                if (text := next(made, None)) is None:
                    break
                if len(text) > MAX_LETTERS:
                    raise MemoryError
                place[:] = number.to_bytes(8)
        except MemoryError:
            code = 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return int.from_bytes(place[:]) if code in (1, -signal.SIGPROF, -signal.SIGKILL, -signal.SIGSEGV) else None


def compile_template(text: str) -> Any:
    """A template in the sandbox of transformers; raises what Jinja raises."""
    from jinja2 import TemplateError, ext, nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(ext.Extension):
        """The block around what the assistant says, which only a tokenizer needs to notice."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    how = {"trim_blocks": True, "lstrip_blocks": True, "extensions": [Generation, ext.loopcontrols]}
    environment = ImmutableSandboxedEnvironment(**how, optimized=False)
    environment.filters["tojson"] = lambda value, **how: json.dumps(value, **{"ensure_ascii": False} | how)
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda how: datetime.now().strftime(how)}
    # What is made of constants alone Jinja makes while it compiles, used or not, and passes over a lack of memory.
    for node in environment.parse(text).find_all((nodes.BinExpr, nodes.Filter)):
        if not any(node.find_all((nodes.Name, nodes.Call))):
            with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError, TemplateError):
                environment.from_string(nodes.Template([nodes.Output([node])])).render()
    return environment.from_string(text)


def render(text: str, tokens: Mapping[str, str]) -> str:
    """One exchange as a template writes it; raises what Jinja and its sandbox raise."""
    given = {"tools": None, "documents": None, "add_generation_prompt": False}
    template, in_parts = compile_template(text), re.search("['\"]type['\"]", text)  # as of models that see
    with suppress(Exception) if in_parts else nullcontext():
        if ANSWER in (rendered := template.render(**{**tokens, **given, "messages": PROBE})) or not in_parts:
            return rendered
    return template.render(**{**tokens, **given, "messages": IN_PARTS})
