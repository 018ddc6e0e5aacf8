"""Checks of tokenizers and their chat templates.

Before the start they go by the files of a folder, later by what the loader has at hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runner.errors import ConfigError, Fault, describe
from runner.io.files import JsonObject
from runner.model import faults, jinja
from runner.model.config_values import find_value_faults
from runner.model.model_files import ModelFolder, find_folder
from runner.schema.did_you_mean import best_guess
from runner.schema.text import Node, to_override

if TYPE_CHECKING:
    from tokenizers import AddedToken

# Finds faults of what a template that works, with these special tokens, makes of the rows.
LookAtTemplate = Callable[[str, Mapping[str, str]], list[Fault]]

CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
TOKENIZER = "runner.model.load.load_tokenizer"
# Files of which a tokenizer has at least one.
VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "vocab.bpe",
    "encoder.json",
)
# Classes that have no vocabulary, by the beginnings of their names.
BYTE_TOKENIZERS = ("ByT5", "MyT5", "Canine", "Perceiver")
# Classes without an end token of their own.
ENDLESS_TOKENIZERS = ("", "TokenizersBackend", "PreTrainedTokenizerFast")
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token")


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a tokenizer, by its files or by what was loaded."""

    tokens: Collection[str] = ()
    # Those that were not learnt from text, by their numbers.
    added: Mapping[int, AddedToken] = field(default_factory=dict)
    used: Collection[str | None] = ()  # the special tokens that the tokenizer writes by itself
    template: str = ""  # which may write further special tokens
    new: Collection[str] = ()  # for which a model gets rows

    @property
    def marks(self) -> str:
        """Special tokens to choose from."""
        marks = [token.content for token in self.added.values() if token.special]
        return ", ".join(marks[:5])


@dataclass(frozen=True)
class TokenizerFiles:
    """The files of a tokenizer on this machine, and the node that names them."""

    node: Node
    folder: ModelFolder
    config: JsonObject  # tokenizer_config.json, empty where there is none

    def special_tokens(self) -> dict[str, str]:
        """The tokens that begin, end and pad texts, by their keys.

        The text is empty where there is no such token.
        """
        tokens = {}
        for key in SPECIAL_TOKENS:
            token = self.node.get(key) or self.config.get(key)
            tokens[key] = _text_of(token) or ""
        return tokens


def find_tokenizer_faults(
    node: object, rows: int | None, *, chats: bool = False, look: LookAtTemplate | None = None
) -> list[Fault]:
    """Faults of a node's tokenizer, and of its chat template, which ``chats`` need.

    ``rows`` is the number of the model's embeddings.

    ``look`` finds faults of what a template that works makes of the rows.
    """
    if not isinstance(node, Mapping) or node.get("_target_") != TOKENIZER:
        return []
    try:
        folder = find_folder(node["path"], "model.tokenizer.path")
        if folder and folder.base and not folder.has(CONFIG):
            folder = find_folder(folder.base.path, folder.where)
        if folder is None:
            return _find_chosen_template_faults(node, {}, Vocabulary(), look, is_here=False)
        config = folder.read(CONFIG) if folder.has(CONFIG) else {}
        config_faults = list(find_value_faults(folder, CONFIG)) if config else []
        if config_faults:
            return config_faults
        files = TokenizerFiles(node, folder, config)
        tokens = files.special_tokens()
        vocabulary = _read_vocabulary(files)
        found = list(_find_vocabulary_faults(files, vocabulary, rows))
        if chats and not _has_template(files):
            found.append(jinja.no_template())
        if found:
            return found
        if node.get("chat_template"):
            return _find_chosen_template_faults(node, tokens, vocabulary, look, is_here=True)
        return _find_own_template_faults(files, tokens, look)
    except ConfigError as error:
        return error.faults


# --- Tokens -------------------------------------------------------------------------------------


def new_tokens(node: Node) -> list[str]:
    """The tokens that a node of a tokenizer adds, but for a pad token."""
    tokens: list[str] = []
    for key in ("add_tokens", "add_special_tokens"):
        listed = node.get(key)
        if isinstance(listed, list | tuple):
            tokens += map(str, listed)
    return tokens


def find_token_faults(node: Node, vocabulary: Vocabulary) -> Iterator[Fault]:
    """Faults of tokens that are named and not in the vocabulary.

    A pad token that resembles no other is added.
    """
    new = new_tokens(node)
    if not all(new):
        yield Fault(
            where="model.tokenizer.add_tokens",
            found="an empty text among the new tokens",
            expected="what they are written as",
            fix="leave it out",
        )
    for key in ("eos_token", "pad_token"):
        token = node.get(key)
        if token is None or token in vocabulary.tokens or token in new:
            continue
        added = [added_token.content for added_token in vocabulary.added.values()]
        similar = best_guess(token, added, cutoff=0.8)
        if key == "pad_token" and token and not similar:
            continue
        fix = to_override("", similar) if similar else "=<token>"
        if token:
            add = to_override("model.tokenizer.add_special_tokens", [token])
            fix += f", or {add}, which is new"
        expected = "one of its tokens"
        if vocabulary.marks:
            expected = f"such as {vocabulary.marks}"
        yield Fault(
            where=f"model.tokenizer.{key}",
            found=f"{token} is not in the vocabulary",
            expected=expected,
            fix=fix,
        )


def find_size_faults(vocabulary: Vocabulary, rows: int) -> list[Fault]:
    """A fault where a text could become a token that the model has no embedding for.

    ``rows`` is the number of embeddings. New tokens get rows, so that they may lie beyond.

    A special token that nothing here writes may lie beyond: that of Gemma's images does in its
    models of text alone.
    """
    count = len(vocabulary.tokens)
    beyond = [token for number, token in vocabulary.added.items() if number >= rows]
    is_too_large = count - len(beyond) > rows
    for token in beyond:
        text = token.content
        is_written = not token.special or text in vocabulary.used or text in vocabulary.template
        if is_written and text not in vocabulary.new:
            is_too_large = True
    if not is_too_large:
        return []
    return [
        Fault(
            where="model.tokenizer.path",
            found=f"the tokenizer has {count} tokens, the model {rows}",
            expected="the tokenizer that the model was trained with, or what is new among "
            "model.tokenizer.add_tokens",
            fix="=<folder or org/name>",
        )
    ]


def _text_of(entry: object) -> str | None:
    """The text of a special token, which may be an object in a file."""
    token = entry
    if isinstance(entry, Mapping):
        token = entry.get("content")
    return token if isinstance(token, str) else None


def _find_vocabulary_faults(
    files: TokenizerFiles, vocabulary: Vocabulary, rows: int | None
) -> Iterator[Fault]:
    """Faults of a folder without a vocabulary, or with one that does not suit node and model."""
    folder = files.folder
    class_name = str(files.config.get("tokenizer_class") or "")
    has_other_vocabulary = (
        class_name.startswith(BYTE_TOKENIZERS)
        or files.config.get("auto_map")
        or any(folder.path.glob("*.tiktoken"))
    )
    if not has_other_vocabulary and not folder.has(*VOCABULARIES):
        yield Fault(
            where=folder.where,
            found=f"{folder.source} holds no tokenizer",
            expected="tokenizer.json, or the files of a slow tokenizer",
            fix="=<folder or org/name>",
        )
    if not vocabulary.tokens:
        return
    is_endless = not files.special_tokens()["eos_token"] and class_name in ENDLESS_TOKENIZERS
    if is_endless and not folder.has("special_tokens_map.json"):
        yield faults.no_end_token(vocabulary.marks)
    yield from find_token_faults(files.node, vocabulary)
    if rows:
        yield from find_size_faults(vocabulary, rows)


def _read_vocabulary(files: TokenizerFiles) -> Vocabulary:
    """The vocabulary in tokenizer.json; an empty one where there is no such file."""
    folder = files.folder
    config = files.config
    if not folder.has("tokenizer.json"):
        return Vocabulary()
    from tokenizers import Tokenizer

    content = folder.read("tokenizer.json")
    try:
        Tokenizer.from_file(str(folder.path / "tokenizer.json"))
        # With their numbers, or with their scores.
        entries = (content.get("model") or {}).get("vocab") or {}
        if not isinstance(entries, Mapping):
            entries = [token for token, _ in entries]
        learnt = list(entries)
        added = _list_added_tokens(content, config)
    except Exception as error:  # the library raises no narrower class
        found = f"tokenizer.json or tokenizer_config.json of {folder.source} lists no tokens"
        raise ConfigError(
            Fault(
                where=folder.where,
                found=f"{found}: {describe(error)}",
                expected="tokens by their numbers, as tokenizers writes them",
                fix="=<folder or org/name>",
            )
        ) from error
    added_texts = [token.content for _, token in added]
    return Vocabulary(
        tokens={*learnt, *added_texts},
        added=dict(added),
        used={*files.special_tokens().values(), _text_of(config.get("unk_token"))},
        template=str(config.get("chat_template") or ""),
        new=new_tokens(files.node),
    )


def _list_added_tokens(content: JsonObject, config: JsonObject) -> list[tuple[int, AddedToken]]:
    """The tokens that were added to those learnt from text, each behind its number."""
    from tokenizers import AddedToken

    entries = [(entry["id"], entry) for entry in content.get("added_tokens") or ()]
    # Those that were added after the tokenizer's own file was written.
    for number, entry in (config.get("added_tokens_decoder") or {}).items():
        entries.append((int(number), entry))
    added = []
    for number, entry in entries:
        is_special = bool(entry.get("special"))
        token = AddedToken(entry["content"], special=is_special)
        added.append((number, token))
    return added


# --- Chat templates -----------------------------------------------------------------------------


def _has_template(files: TokenizerFiles) -> bool:
    """True where a chat template is named or in the folder."""
    if files.node.get("chat_template") or files.config.get("chat_template"):
        return True
    names = (TEMPLATE, "additional_chat_templates")
    return any((files.folder.path / name).exists() for name in names)


def _find_chosen_template_faults(
    node: Node,
    tokens: Mapping[str, str],
    vocabulary: Vocabulary,
    look: LookAtTemplate | None,
    *,
    is_here: bool,
) -> list[Fault]:
    """Faults of the template that a node names, if any.

    ``is_here`` says that the tokenizer's files are on this machine, and its tokens known.
    """
    name = str(node.get("chat_template") or "")
    if not name:
        return []
    text = jinja.read_template(name)
    # Those that ship work; those of a family need tokens that only the hub knows.
    works = name in jinja.template_names() or (not is_here and not name.endswith(".jinja"))
    if not works:
        all_tokens = {*vocabulary.tokens, *vocabulary.new} if vocabulary.tokens else ()
        end = tokens.get("eos_token")
        found = jinja.find_template_faults(
            text, name, end, tokens, chosen=True, vocabulary=all_tokens
        )
        if found:
            return found
    return look(text, tokens) if look else []


def _find_own_template_faults(
    files: TokenizerFiles, tokens: Mapping[str, str], look: LookAtTemplate | None
) -> list[Fault]:
    """Faults of the template in a tokenizer's files, if it has one."""
    file = CONFIG
    text = files.config.get("chat_template")
    is_shipped = str(files.node["path"]).startswith("runner://")
    if files.folder.has(TEMPLATE) and not is_shipped:
        file = TEMPLATE
        jinja.check_length(files.folder.path / TEMPLATE)
        text = _read_template_file(files.folder)
    if isinstance(text, list):  # several by their names
        templates = text
        text = None
        for template in templates:
            if isinstance(template, Mapping) and template.get("name") == "default":
                text = template.get("template")
    if not isinstance(text, str):
        return []
    found = jinja.find_template_faults(text, file, None, tokens, chosen=False)
    return found or (look(text, tokens) if look else [])


def _read_template_file(folder: ModelFolder) -> str:
    return (folder.path / TEMPLATE).read_text(encoding="utf-8", errors="replace")


def find_template_argument_faults(node: Node, arguments: Node, where: str) -> Iterator[Fault]:
    """A fault for each argument of a chat template that the template does not mention.

    None is found where the template is not on this machine.
    """
    text = _read_template(node)
    if not text:
        return
    words = set(re.findall(r"[A-Za-z_]\w*", text))
    likely_words = [word for word in words if "_" in word]
    for name, value in arguments.items():
        if name in words:
            continue
        similar = best_guess(str(name), likely_words, cutoff=0.75)
        expected = "an argument that it reads"
        fix = f"leave {name} out"
        if similar:
            expected = similar
            word = to_override(f"{where}.{similar}", value)
            fix = f"{word} in place of {name}"
        yield Fault(
            where=f"{where}.{name}",
            found="the chat template does not read it",
            expected=expected,
            fix=fix,
        )


def _read_template(node: Node) -> str:
    """The template that a node names, or that of its folder.

    Empty where it is not on this machine, and where it is faulty.
    """
    try:
        if node.get("chat_template"):
            return jinja.read_template(str(node["chat_template"]))
        folder = find_folder(node.get("path"), "model.tokenizer.path")
        if folder is None or (folder.path / "additional_chat_templates").exists():
            return ""
        if folder.has(TEMPLATE):
            return _read_template_file(folder)
        config = folder.read(CONFIG) if folder.has(CONFIG) else {}
        return str(config.get("chat_template") or "")
    except ConfigError:  # which is reported where the tokenizer is checked
        return ""
