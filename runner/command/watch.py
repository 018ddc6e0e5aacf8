"""Serves the pages of a report, read-only and on this machine alone, while the runs train.

Their address holds a random token, which no log names. What follows the token never becomes a path:
it is looked up among the existing runs. A page is drawn anew when the sizes or times of its files
change; nothing is written.
"""

import contextlib
import hashlib
import io
import secrets
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import quote
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from runner.command import CommandLine
from runner.command._option import read_options
from runner.command.watch_options import Options
from runner.errors import EnvironmentFault, RunnerError, describe, taken_port
from runner.io.files import display_path
from runner.io.terminal import print_visible
from runner.report.compare import find_changed_keys
from runner.report.front_page import NameRow, describe_name, to_front_page
from runner.report.index import read_group, stamp_of
from runner.report.page import LIVE
from runner.report.run_page import to_run_page
from runner.report.selection import summarise
from runner.report.sweep_page import to_sweep_page
from runner.run.find import find_folders, is_run, resolve_word, words_below
from runner.run.record import find_names, read_run, read_state

HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": f"{LIVE}; frame-ancestors 'none'; base-uri 'none'",
    "Server": "runner",
}


def main(line: CommandLine) -> int:
    """Serve the pages of what the command line names, or of all that there is, until Ctrl-C."""
    options = read_options(line, Options)
    root = Path(options.output_root)
    folders = [resolve_word(word, "watch", root) for word in words_below(root, line.runs)]
    folders = [folder.absolute() for folder in folders]
    groups = [folder.parent if is_run(folder) else folder for folder in folders]
    groups = list(dict.fromkeys(groups))
    try:
        server = Server(root, groups, options.port)
    except OSError as error:
        raise EnvironmentFault(taken_port(options.port, error)) from None
    # The page of all runs, of those of several names, of one name, or of one run.
    address = "report.html" if folders else ""
    if len(folders) == 1:
        folder = folders[0].relative_to(groups[0].parent)
        address = f"{folder.as_posix()}/report.html"
    names = ", ".join(map(display_path, folders or [root]))
    print_visible(f"watching  {names}; Ctrl-C ends it")
    print_visible(f"page      {server.address}{quote(address)}")
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    return 0


@dataclass
class Answer:
    """An answer to a request."""

    status: str
    text: str
    etag: str = ""  # of a page


@dataclass
class Page:
    """A page that can be drawn: the ``state`` of the files behind it, and the drawing."""

    state: object
    draw: Callable[[str], str]  # takes the etag, returns the text


class Server(ThreadingMixIn, WSGIServer):
    """The pages of some groups, or of all in a folder, on a port of this machine.

    Port 0 stands for any that is free.
    """

    daemon_threads = True

    def __init__(self, root: Path, groups: Sequence[Path] = (), port: int = 0):
        super().__init__(("127.0.0.1", port), Handler)
        self.set_app(self.answer)
        self.root = root
        self.groups = groups
        self.token = secrets.token_urlsafe(24)
        self.address = f"http://127.0.0.1:{self.server_port}/{self.token}/"
        self.hosts = (f"127.0.0.1:{self.server_port}", f"localhost:{self.server_port}")
        self.memory: dict[Path, Any] = {}  # of ``read_group``
        # The row of each name on the front page, with the states of the runs that it was made of.
        self.rows: dict[Path, tuple[object, NameRow]] = {}
        self.lock = threading.Lock()
        # The colours of runs on the page of a name, or of all.
        self.colours: defaultdict[str, dict[Path, str]] = defaultdict(dict)
        # Of each folder only once, because the options stay as they are.
        self.changed_keys = cache(lambda folder: find_changed_keys(read_run(folder)))

    def answer(self, request: dict[str, Any], start: Callable[..., object]) -> list[bytes]:
        """The content of a page, for WSGI; none where the reader's is still the same.

        Whoever lacks the address, or comes by the name of another host, learns nothing.
        """
        answer = self._answer_to(request)
        content = answer.text.encode(errors="replace")
        kind = "html" if answer.etag else "plain"
        headers = HEADERS | {
            "Content-Type": f"text/{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
        }
        if answer.etag:
            headers["ETag"] = answer.etag
        else:
            headers["Allow"] = "GET, HEAD"
        start(answer.status, list(headers.items()))
        return [] if request["REQUEST_METHOD"] == "HEAD" else [content]

    def _answer_to(self, request: dict[str, Any]) -> Answer:
        """The answer to a request: a page, if its address has the token, and its host is ours.

        A page that another site opens in the same browser could ask this server, too. It does not
        know the token; and a name of its own that it lets point here is refused by the host.
        """
        path = request["PATH_INFO"].encode("latin-1").decode(errors="surrogateescape")
        token, slash, address = path.removeprefix("/").partition("/")
        if request.get("HTTP_HOST") not in self.hosts:
            return Answer("403 Forbidden", "This server answers only to 127.0.0.1.")
        if request["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return Answer("405 Method Not Allowed", "Pages can be read, and nothing else.")
        is_known = secrets.compare_digest(token.encode(errors="replace"), self.token.encode())
        if not slash or not is_known:
            text = "Nothing is here: use the complete address that watch has printed."
            return Answer("404 Not Found", text)
        try:
            etag, text = self.page_of(address, request.get("HTTP_IF_NONE_MATCH", ""))
            return Answer("200 OK" if text else "304 Not Modified", text, etag)
        except (KeyError, FileNotFoundError, NotADirectoryError):
            text = "No such page: its runs may have been deleted."
            return Answer("404 Not Found", text)
        except (RunnerError, OSError) as error:
            return Answer("503 Service Unavailable", f"It cannot be read now: {describe(error)}")
        except Exception as error:  # our own fault
            traceback.print_exc()
            return Answer("500 Internal Server Error", describe(error))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error, but not that of a reader who hangs up, or is silent for too long."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def page_of(self, address: str, known_etag: str) -> tuple[str, str]:
        """The etag of a page, which stands for its state, and its text.

        The text is empty where the etag is the known one. Raises KeyError where there is no such
        page.
        """
        page = self._find_page(*address.split("/"))
        state = str(page.state).encode(errors="replace")
        etag = f'"{hashlib.sha256(state).hexdigest()[:20]}"'
        with self.lock:  # several readers wait for each other
            text = "" if etag == known_etag else page.draw(etag)
        return etag, text

    def _find_page(self, *parts: str) -> Page:
        """The page at an address: of all names, of one or several names, or of one run."""
        groups = {group.name: group for group in self.groups or self.root.glob("[!.]*")}
        has_several = len(self.groups) > 1
        if parts == ("",):
            return self._front_page(groups.values(), has_several)
        *names, file = parts
        if file != "report.html" or not (names or has_several):
            raise KeyError(file)
        shown_groups = [groups[names[0]]] if names else self.groups
        folders = {}
        for group in shown_groups:
            for folder in find_folders(group):
                folders[folder.name] = folder
        if names[1:]:
            return self._run_page(folders["/".join(names[1:])])
        # A run that is lost ends without a change of its files.
        state = [
            (folder, stamp_of(folder), read_state(folder).state) for folder in folders.values()
        ]
        colours = self.colours["/".join(names)]

        def draw(etag: str) -> str:
            runs = []
            for group in shown_groups:
                runs += read_group(group, self.memory)
            return to_sweep_page(replace(summarise(runs), colours=colours), etag)

        return Page(state, draw)

    def _front_page(self, groups: Iterable[Path], has_several: bool) -> Page:
        """The page of all names; a name whose runs are as before keeps its row."""
        states: dict[Path, object] = {}
        for group, runs in find_names(groups):
            state = []
            for run in runs:
                state.append((run.folder, run.status, run.state))
            states[group] = state

        def draw(etag: str) -> str:
            rows = []
            for group, state in states.items():
                known_state, row = self.rows.get(group, (None, None))
                if row is None or known_state != state:
                    runs = read_group(group, self.memory)
                    if not runs:  # they were deleted a moment ago
                        continue
                    row = describe_name(group, runs)
                    self.rows[group] = state, row
                rows.append(row)
            return to_front_page(rows, etag, several=has_several)

        return Page(states, draw)

    def _run_page(self, folder: Path) -> Page:
        """The page of a run, which is drawn again when a file of the run has changed."""

        def draw(etag: str) -> str:
            return to_run_page(read_run(folder), self.changed_keys(folder), etag)

        return Page(stamp_of(folder), draw)


class Handler(WSGIRequestHandler):
    """Answers a request without a line on the terminal, because its address holds the token."""

    timeout = 30  # seconds for a reader who says nothing

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def get_stderr(self) -> io.StringIO:
        """A place for tracebacks of a reader who does not take the page.

        Those of our own are printed before.
        """
        return io.StringIO()
