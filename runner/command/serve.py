"""Serves a trained model to programs that speak OpenAI's interface, by a server of others."""

import contextlib
import functools
import http.client
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from runner.command import CommandLine
from runner.command._engine import HOST, Server, choose_engine, prepared_server
from runner.command._named_model import check_writes, with_model
from runner.command._request import read_model_request
from runner.command._served_model import name_of
from runner.command.serve_options import Options
from runner.errors import EnvironmentFault, Fault, code_of, taken_port
from runner.io.terminal import print_visible
from runner.launch import signals
from runner.launch.processes import set_parent_death_signal

SECONDS_TO_END = 20.0
SECONDS_TO_TIDY = 2.0
SECONDS_BETWEEN_LOOKS = 0.3


def main(line: CommandLine) -> int:
    """Serve what the command line names until Ctrl-C."""
    request = read_model_request(with_model(line), Options, ("model",))
    check_writes(request)
    engine = choose_engine(request)
    port = _find_port(request.options.port)
    print_visible(f"model     {request.name} ({request.weights.name})")
    name = name_of(request)
    url = f"http://{HOST}:{port}/v1"
    body = {"model": name, "messages": [{"role": "user", "content": "Hello"}]}
    header = "Content-Type: application/json"
    words = ["curl", f"{url}/chat/completions", "-H", header, "-d", json.dumps(body)]
    try:
        with signals.handle_signals(_leave), prepared_server(engine, request, port) as server:
            print(f"engine    {engine}, which is starting", flush=True)
            with _running(server) as process:
                while not _is_up(port) and process.poll() is None:
                    time.sleep(SECONDS_BETWEEN_LOOKS)
                if process.poll() is None:
                    print_visible(f"url       {url}  (model {name}); Ctrl-C ends it")
                    print_visible(f"try       {shlex.join(words)}")
                code = process.wait()
    except KeyboardInterrupt:  # the end that was meant
        return 0
    raise EnvironmentFault(
        Fault(
            where=engine,
            found=f"the server has ended by itself, with exit code {code}",
            expected="a server that answers",
            fix="what it says above, or another engine=",
        )
    )


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Leave in such a way that nothing stays behind."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    if number == signal.SIGHUP:
        signals.detach_terminal()
    sys.exit(code_of(number))


def _find_port(port: int) -> int:
    """The port if it is free, for 0 any free one; EnvironmentFault where it is taken."""
    try:
        with socket.create_server((HOST, port)) as server:
            free: int = server.getsockname()[1]
            return free
    except OSError as error:
        raise EnvironmentFault(taken_port(port, error)) from None


@contextlib.contextmanager
def _running(server: Server) -> Iterator[subprocess.Popen[bytes]]:
    """A server, which is ended in the end with all that it has started."""
    process = subprocess.Popen(
        server.words,
        env=os.environ | server.variables,
        stdin=subprocess.DEVNULL,
        # Ctrl-C reaches it through this process alone.
        start_new_session=True,
        preexec_fn=functools.partial(set_parent_death_signal, os.getpid()),
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        # A second signal cuts the wait short.
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt, SystemExit):
            process.wait(SECONDS_TO_END)
        with contextlib.suppress(ProcessLookupError):  # which says that nothing is left
            # Those that have outlived it may still be giving back what they hold.
            deadline = time.monotonic() + SECONDS_TO_TIDY
            while time.monotonic() < deadline:
                os.killpg(process.pid, 0)
                time.sleep(SECONDS_BETWEEN_LOOKS)
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _is_up(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    return False
