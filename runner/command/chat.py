"""Talks with a trained model in the terminal, or has it answer one question."""

import contextlib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runner.command import CommandLine
from runner.command._conversation import Conversation, Request, open_conversation
from runner.command._named_model import check_writes, read_against, with_model
from runner.command._request import read_model_request
from runner.command.chat_options import HELP, Options
from runner.errors import ConfigError, Fault, RunnerError
from runner.io.files import display_path, open_own, to_line
from runner.io.terminal import is_terminal, print_error, print_visible
from runner.io.visible import visible_lines

PARTS = ("model", "quant")  # of a configuration, which a model talks with
COMMANDS = ("/reset", "/system", "/save", "/help", "/quit")


def main(line: CommandLine) -> int:
    """Talk with what the command line names until the user ends it, or answer one question."""
    line = with_model(line)
    requests = [_read(line)]
    options = requests[0].options
    if options.against is not None:
        other = read_against(
            line, requests[0], options.against, lambda words: _read(with_model(words))
        )
        requests.append(replace(other, options=replace(options, checkpoint=None)))
    for request in requests:
        check_writes(request)
    question = options.prompt
    if question is None and not is_terminal(sys.stdin):
        question = _read_pipe()
    conversations = [open_conversation(request, _show) for request in requests]
    if question is None:
        for conversation in conversations:
            print_visible(f"model     {conversation.name}")
            for title, note in conversation.notes.items():
                print_visible(f"{title:<10}{note}")
        print(
            "chat      /help lists what you can type; Ctrl-C stops an answer, Ctrl-D ends the chat"
        )
        _talk(conversations, requests[0].folder("chats") / "chat.jsonl")
        return 0
    for conversation in conversations:
        for title, note in conversation.notes.items():
            print(f"{title:<10}{note}", file=sys.stderr)
        _answer(conversation, question, is_labelled=len(conversations) > 1)
    return 0


def _read(line: CommandLine) -> Request:
    return read_model_request(line, Options, PARTS)


def _read_pipe() -> str:
    """The question that another command has piped here."""
    text = sys.stdin.read().strip() if sys.stdin else ""
    if not text:
        raise ConfigError(
            Fault(
                where="prompt",
                found="no terminal to talk in, and no text from a pipe",
                expected="a question",
                fix='prompt="<question>"',
            )
        )
    return text


# --- The terminal ---------------------------------------------------------------------------------
def _show(piece: str) -> None:
    """Print a piece of an answer; on a terminal, which it could control, visibly."""
    if is_terminal(sys.stdout):
        piece = visible_lines(piece)
    print(piece, end="", flush=True)


def _talk(conversations: Sequence[Conversation], file: Path) -> None:
    """Answer what is typed until the user ends the chat; ``file`` is that of /save."""
    # With it, the arrow keys edit a line and find earlier ones.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    is_over = False
    while not is_over:
        try:
            text = _read_message()
            if text.startswith("/"):
                is_over = _obey(text, conversations, file)
            elif text.strip():
                for conversation in conversations:
                    _answer(conversation, text.strip(), is_labelled=len(conversations) > 1)
        except EOFError:
            print()
            is_over = True
        except KeyboardInterrupt:
            print("\n(Ctrl-D or /quit ends the chat)")
        except (RunnerError, OSError) as error:
            print_error(error)


def _read_message() -> str:
    """The text that the user types: a line, and those behind a backslash at the end of one."""
    lines = [input("> ")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(input("  "))
    return "\n".join(lines)


def _answer(conversation: Conversation, question: str, *, is_labelled: bool) -> None:
    """Print the answer to a question, and how it ended where that was not by itself."""
    if is_labelled:
        print_visible(f"[{conversation.name}]")
    finish = conversation.answer(question)
    print(flush=True)
    if finish == "length":
        how = conversation.generator.how
        print(f"(cut off; max_new_tokens={how.max_new_tokens})", file=sys.stderr)
    elif finish == "interrupted":
        print("(stopped)", file=sys.stderr)


def _obey(text: str, conversations: Sequence[Conversation], file: Path) -> bool:
    """Do what a word with a slash says; true where it ends the chat."""
    command, _, rest = text.partition(" ")
    rest = rest.strip()
    if command == "/quit":
        return True
    if command == "/reset":
        for conversation in conversations:
            conversation.turns.clear()
        print("(what was said is forgotten)")
    elif command == "/system":
        if rest:
            # All of the models get it, or none does.
            for conversation in conversations:
                conversation.check_system(rest)
            for conversation in conversations:
                conversation.system = rest
        print_visible(f"system    {conversations[0].system or 'none'}")
    elif command == "/save":
        _save(conversations, Path(rest).expanduser() if rest else file)
    elif command == "/help":
        print(HELP[-1])
    else:
        print(f"{command} is none of {', '.join(COMMANDS)}")
    return False


def _save(conversations: Sequence[Conversation], file: Path) -> None:
    """Add what was said to a file, a row for each conversation."""
    rows = []
    for conversation in conversations:
        if conversation.turns:
            rows += conversation.to_rows()
    if not rows:
        print("(nothing was said yet)")
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with open_own(file, "a", encoding="utf-8") as stream:
        stream.writelines(map(to_line, rows))
    path = display_path(file)
    print_visible(f"saved     {path}; to train on it: dataset={shlex.quote(path)}")
