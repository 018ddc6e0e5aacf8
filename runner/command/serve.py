"""Serves a trained model to programs that speak OpenAI's interface, by a server of others."""

import contextlib
import http.client
import json
import shlex
import signal
import socket
import sys
import time
from types import FrameType
from typing import NoReturn

from runner.command import CommandLine
from runner.command._engine import HOST, choose_engine, prepared_server
from runner.command._named_model import check_writes, with_model
from runner.command._request import read_model_request
from runner.command._served_model import name_of
from runner.command.serve_options import Options
from runner.errors import EnvironmentFault, Fault, code_of, taken_port
from runner.io.server_process import SECONDS_BETWEEN_LOOKS, running
from runner.io.terminal import print_visible
from runner.launch import signals


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
            with running(server.words, server.variables) as process:
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


def _is_up(port: int) -> bool:
    """True where the server answers that it is ready; while it loads a model it refuses."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    return False
