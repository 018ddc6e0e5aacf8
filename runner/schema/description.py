"""The words in which libraries, and this package, describe the arguments of a target.

They are read from the source, as signatures are: the help in the metadata of a field, the text
below a field, the entry of an argument in a docstring, the sentences that name it there, or the
comment beside it.
"""

import ast
import functools
import re

from runner.schema.source import Definition, Function, bases, find_definition

MAX_LETTERS = 400  # of a description
# The entry of an argument in a docstring, to its first empty line: ``name (`int`, *optional*):``
ENTRY = re.compile(r"^( *)(\w+) ?\(.*\) ?:(.*\n(?:\1 +\S.*\n)*)", re.MULTILINE)
# A field, or a key of YAML, with the lines of comments above it and the comment behind it.
COMMENTED = re.compile(r"^((?: *# .*\n)*) *(\w+):(?: .*?)??(?:  # (.*))?$", re.MULTILINE)
END_OF_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")


def read_descriptions(target: str) -> dict[str, str]:
    """The description of each argument of a dotted target, where its source has one."""
    definition = find_definition(target)
    return _descriptions_of(definition) if isinstance(definition, Definition) else {}


def read_comments(text: str) -> dict[str, str]:
    """The comment of each field of Python, or key of YAML: that behind it, else that above it."""
    comments = {}
    for above, name, behind in COMMENTED.findall(text):
        comment = behind or re.sub(r"^ *# ", "", above, flags=re.MULTILINE)
        if comment:
            comments[name] = cut_text(comment)
    return comments


@functools.lru_cache(maxsize=256)
def _descriptions_of(definition: Definition) -> dict[str, str]:
    """The descriptions of the arguments of a function or a class, by their names.

    Those of a class win over those of its bases. Of its own they are those of its comments, its
    docstring, that of its constructor, and the help of its fields, of which the last one counts.
    """
    node = definition.node
    if isinstance(node, Function):
        docstring = ast.get_docstring(node) or ""
        return _described_in(docstring, node.args)
    descriptions: dict[str, str] = {}
    if not isinstance(node, ast.ClassDef):
        return descriptions
    for base in reversed(list(bases(definition))):
        if base:
            descriptions |= _descriptions_of(base)
    lines = definition.module.text.splitlines()[node.lineno : node.end_lineno]
    descriptions |= read_comments("\n".join(lines))
    docstring = ast.get_docstring(node) or ""
    descriptions |= _described_in(docstring)
    for method in node.body:
        if isinstance(method, Function) and method.name == "__init__":
            docstring = ast.get_docstring(method) or ""
            descriptions |= _described_in(docstring, method.args)
    descriptions |= _help_of_fields(node)
    return descriptions


def _described_in(docstring: str, arguments: ast.arguments | None = None) -> dict[str, str]:
    """The entries of a docstring; for arguments without one, the sentences with their names."""
    texts = {}
    listed = []
    if arguments:
        listed = arguments.args + arguments.kwonlyargs
    sentences = END_OF_SENTENCE.split(docstring)
    for argument in listed:
        name = argument.arg
        named = [text for text in sentences if re.search(rf"``{name}(``|=)", text)]
        if named:
            texts[name] = cut_text(" ".join(named))
    for _, name, text in ENTRY.findall(f"{docstring}\n"):
        texts[name] = cut_text(text)
    return texts


def _help_of_fields(node: ast.ClassDef) -> dict[str, str]:
    """The help in the metadata of each field of a dataclass, or the text below it."""
    texts: dict[str, str] = {}
    name = ""
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)):
                for inner in ast.walk(statement):
                    match inner:
                        case ast.Dict(
                            keys=[ast.Constant(value="help"), *_],
                            values=[ast.Constant(value=str() as text), *_],
                        ):
                            texts[name] = cut_text(text)
            case ast.Expr(value=ast.Constant(value=str() as text)) if name:
                texts[name] = cut_text(text)
    return texts


def cut_text(text: str) -> str:
    """A text on one line, cut at the end of a sentence where it is long."""
    text = " ".join(text.split())
    if len(text) <= MAX_LETTERS:
        return text
    end = text.rfind(". ", 0, MAX_LETTERS)
    return text[: end + 1] or f"{text[:MAX_LETTERS]}..."
