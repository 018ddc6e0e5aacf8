"""Serves the pages of a report while the runs train: to whoever has their address, here, and only to be read.

The address holds a random token, which no log names. What it says behind that is never made a path,
but looked up among the runs that there are. A page is drawn anew when its files have other sizes or
times; nothing is written.
"""

import contextlib
import hashlib
import io
import secrets
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import quote
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from runner.command import CommandLine, read_options
from runner.command.report import find_names
from runner.errors import EnvironmentFault, Fault, RunnerError, describe
from runner.io.files import display_path
from runner.io.terminal import print_visible
from runner.report.compare import find_changed_keys
from runner.report.index import read_group, stamp_of
from runner.report.page import LIVE, fill_page, to_run_page, to_sweep_page
from runner.report.selection import summarise
from runner.run.find import find_folders, is_run, resolve_word
from runner.run.record import read_run, read_state

HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
HEADERS |= {
    "Content-Security-Policy": f"{LIVE}; frame-ancestors 'none'; base-uri 'none'",
    "Server": "runner",
}


def main(line: CommandLine) -> int:
    """Serve the pages of what the command line names, or of all that there is, until Ctrl-C; then 0."""
    options = read_options(line.overrides, "watch")
    root, port = Path(options.get("output_root", "outputs")), options.get("port", 0)
    folders = [resolve_word(word, "watch", root).absolute() for word in line.runs]
    groups = list(dict.fromkeys(each.parent if is_run(each) else each for each in folders))
    try:
        server = Server(root, groups, port)
    except OSError as error:
        raise EnvironmentFault(
            Fault(
                where="port",
                found=f"{port}: {describe(error)}",
                expected="a free port",
                fix="port=0  (any free one)",
            )
        ) from None
    parts = folders[0].relative_to(groups[0].parent).parts if len(folders) == 1 else ()
    print_visible(f"watching  {', '.join(map(display_path, folders or [root]))}; Ctrl-C ends it")
    print_visible(
        f"page      {server.address}{quote('/'.join([*parts, 'report.html' if folders else '']))}"
    )
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    return 0


class Server(ThreadingMixIn, WSGIServer):
    """The pages of some groups, or of all in a folder, on a port of this machine; of port 0 on any that is free."""

    daemon_threads = True

    def __init__(self, root: Path, groups: Sequence[Path] = (), port: int = 0):
        super().__init__(("127.0.0.1", port), Handler)
        self.set_app(self.answer)
        self.root, self.groups, self.token = root, groups, secrets.token_urlsafe(24)
        self.address = f"http://127.0.0.1:{self.server_port}/{self.token}/"
        self.hosts = (f"127.0.0.1:{self.server_port}", f"localhost:{self.server_port}")
        self.memory, self.lock = dict[Path, Any](), threading.Lock()
        # the colours of runs on the page of a name, or of all
        self.colours = defaultdict[str, dict[Path, str]](dict)
        # Of each folder only once, because the options stay as they are.
        self.changed_keys = cache(lambda folder: find_changed_keys(read_run(folder)))

    def answer(self, asked: dict[str, Any], start: Callable[..., object]) -> list[bytes]:
        """A page, or that it is as it was; nothing to whoever lacks its address, or came by another host's name."""
        path = asked["PATH_INFO"].encode("latin-1").decode(errors="surrogateescape")
        token, slash, address = path.removeprefix("/").partition("/")
        status, etag = "404 Not Found", ""
        text = "Nothing is here: use the complete address that watch has printed."
        if asked.get("HTTP_HOST") not in self.hosts:
            status, text = "403 Forbidden", "This server answers only to 127.0.0.1."
        elif asked["REQUEST_METHOD"] not in ("GET", "HEAD"):
            status, text = "405 Method Not Allowed", "Pages can be read, and nothing else."
        elif slash and secrets.compare_digest(token.encode(errors="replace"), self.token.encode()):
            try:
                etag, text = self.page_of(address, asked.get("HTTP_IF_NONE_MATCH", ""))
                status = "200 OK" if text else "304 Not Modified"
            except (KeyError, FileNotFoundError, NotADirectoryError):
                text = "No such page: its runs may have been deleted."
            except (RunnerError, OSError) as error:
                status, text = (
                    "503 Service Unavailable",
                    f"It cannot be read now: {describe(error)}",
                )
            except Exception as error:  # our own fault
                traceback.print_exc()
                status, text = "500 Internal Server Error", describe(error)
        content, kind = text.encode(errors="replace"), "html" if etag else "plain"
        headers = HEADERS | {
            "Content-Type": f"text/{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
        }
        start(status, [*headers.items(), ("ETag", etag) if etag else ("Allow", "GET, HEAD")])
        return [] if asked["REQUEST_METHOD"] == "HEAD" else [content]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing for a reader who hangs up, or says nothing for too long; else what the library prints."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def page_of(self, address: str, known: str) -> tuple[str, str]:
        """The state of a page and its text, empty where that is ``known``; KeyError where there is no such page."""
        state, draw = self._find_page(*address.split("/"))
        etag = f'"{hashlib.sha256(str(state).encode(errors="replace")).hexdigest()[:20]}"'
        with self.lock:  # several readers wait for each other
            return etag, "" if etag == known else draw(etag)

    def _find_page(self, *parts: str) -> tuple[object, Callable[[str], str]]:
        """The state of the files behind an address, and what draws their page."""
        groups = {each.name: each for each in self.groups or self.root.glob("[!.]*")}
        (*names, page), several = parts, len(self.groups) > 1
        if parts == ("",):
            index = {"title": "Runs", "groups": find_names(groups.values()), "several": several}
            return index, lambda etag: fill_page("index.html", {"charts": []}, etag, **index)
        if page != "report.html" or not (names or several):
            raise KeyError(page)
        shown = [groups[names[0]]] if names else self.groups
        folders = {each.name: each for group in shown for each in find_folders(group)}
        if names[1:]:
            folder = folders["/".join(names[1:])]
            return stamp_of(folder), lambda etag: to_run_page(
                read_run(folder), self.changed_keys(folder), etag
            )
        # some go without a word
        state = [(each, stamp_of(each), read_state(each).state) for each in folders.values()]
        read = (run for group in shown for run in read_group(group, self.memory))
        colours = self.colours["/".join(names)]
        return state, lambda etag: to_sweep_page(
            replace(summarise(list(read)), colours=colours), etag
        )


class Handler(WSGIRequestHandler):
    """Answers one request without a line on the terminal, because what is asked for holds the token."""

    timeout = 30  # seconds for a reader who says nothing

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def get_stderr(self) -> io.StringIO:
        """A place for tracebacks of a reader who does not take the page; those of our own are printed before."""
        return io.StringIO()
