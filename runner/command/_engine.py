"""Servers of others that offer a model as OpenAI's interface: their words and their environment.

Secrets stay in the environment, which a server reads by itself; none is among its words.
"""

import contextlib
import importlib.util
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from runner.command._served_model import (
    Request,
    ServedModel,
    find_gguf,
    name_of,
    served_model,
)
from runner.errors import EnvironmentFault, Fault
from runner.io.distribution import to_install
from runner.launch.processes import visible_devices
from runner.run import installed_version

# Modules of the extra serve, without which the server of transformers does not start.
SERVE_MODULES = ("fastapi", "uvicorn", "openai")
ENGINES = ("vllm", "llama.cpp", "transformers")  # auto is the first that can serve
HOST = "127.0.0.1"
LLAMA_SERVER = "llama-server"
COMMIT = "0" * 40  # of the only model in a cache that is made for a server


@dataclass(frozen=True)
class Server:
    """The words that start a server, and the variables that it needs beside those of here."""

    words: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)


def choose_engine(request: Request) -> str:
    """The engine that serves a request; EnvironmentFault where it is not installed."""
    engine = request.options.engine
    missing = _find_missing(request)
    if engine in missing:
        raise EnvironmentFault(missing[engine])
    if engine != "auto":
        return engine
    for name in ENGINES:
        if name not in missing:
            return name
    raise EnvironmentFault(
        Fault(
            where="engine",
            found="no server for models is installed",
            expected="vllm, llama.cpp with the file of export RUN format=gguf, or the extra serve",
            fix=to_install("fastapi"),
        )
    )


@contextlib.contextmanager
def prepared_server(engine: str, request: Request, port: int) -> Iterator[Server]:
    """The server of an engine, with the files that it reads while it runs."""
    file = find_gguf(request)
    if engine == "llama.cpp" and file is not None:
        words = [str(shutil.which(LLAMA_SERVER)), "--model", str(file), "--alias", name_of(request)]
        words += ["--host", HOST, "--port", str(port)]
        if request.options.max_length is not None:
            words += ["--ctx-size", str(request.options.max_length)]
        yield Server(words)
        return
    with served_model(request) as model, TemporaryDirectory(prefix="runner-serve-") as folder:
        if engine == "vllm":
            yield _vllm_server(model, request, port)
        else:
            yield _transformers_server(model, port, Path(folder))


def _vllm_server(model: ServedModel, request: Request, port: int) -> Server:
    words = [*_vllm_command(), model.path, "--served-model-name", model.name]
    words += ["--host", HOST, "--port", str(port), "--dtype", model.dtype]
    if request.options.max_length is not None:
        words += ["--max-model-len", str(request.options.max_length)]
    if model.trust:
        words.append("--trust-remote-code")
    if not visible_devices():
        words.append("--enforce-eager")  # to compile takes longer than it saves
    return Server(words, {"VLLM_CONFIGURE_LOGGING": "1", "VLLM_LOGGING_LEVEL": "WARNING"})


def _transformers_server(model: ServedModel, port: int, folder: Path) -> Server:
    variables = {"HF_HUB_DISABLE_UPDATE_CHECK": "1"}
    name = model.path
    if model.is_folder:
        # It calls a model by its path, and lists those of the hub's cache alone. In a cache of its
        # own the model has a name, and is the only one that clients see.
        name = model.name
        _put_into_cache(Path(model.path), folder / f"models--{name}")
        variables |= {"HF_HUB_CACHE": str(folder), "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-P", "-m", "transformers.cli.transformers", "serve", name]
    words += ["--host", HOST, "--port", str(port), "--dtype", model.dtype, "--log-level", "error"]
    if model.trust:
        words.append("--trust-remote-code")
    return Server(words, variables)


def _put_into_cache(source: Path, place: Path) -> None:
    """Lay links to the files of a model where the hub's library looks for one with its name."""
    snapshot = place / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file():
            (snapshot / file.name).symlink_to(file.absolute())
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)


# --- What is installed ----------------------------------------------------------------------------
def _vllm_command() -> list[str]:
    """The words before the model for vLLM: of this Python, or of another one on the path."""
    if importlib.util.find_spec("vllm") is not None:
        python = [sys.executable, "-P", "-m"]
        if installed_version("vllm"):
            return [*python, "vllm.entrypoints.cli.main", "serve"]
        # Its builds for a CPU have another name, with which its command does not start.
        return [*python, "vllm.entrypoints.openai.api_server", "--model"]
    command = shutil.which("vllm")
    return [command, "serve"] if command else []


def _find_missing(request: Request) -> dict[str, Fault]:
    """The fault of each engine that cannot serve a request."""
    missing = {}
    if not _vllm_command():
        found = "vllm is not installed"
        missing["vllm"] = Fault(
            where="engine",
            found=found,
            expected="vllm here or on the path",
            fix=to_install("vllm"),
        )
    if shutil.which(LLAMA_SERVER) is None:
        found = f"there is no {LLAMA_SERVER} on the path"
        fix = "engine=transformers  (or install llama.cpp)"
        missing["llama.cpp"] = Fault(
            where="engine",
            found=found,
            expected="the server of llama.cpp",
            fix=fix,
        )
    elif find_gguf(request) is None:
        run = request.name if request.run else "RUN"
        found = "llama.cpp, but the run has no file of its format"
        fix = f"python -m runner export {run} format=gguf"
        missing["llama.cpp"] = Fault(
            where="engine",
            found=found,
            expected="a .gguf file",
            fix=fix,
        )
    absent = [name for name in SERVE_MODULES if importlib.util.find_spec(name) is None]
    if absent:
        found = f"the server of transformers needs {', '.join(absent)}"
        fix = to_install("fastapi")
        missing["transformers"] = Fault(
            where="engine",
            found=found,
            expected="the extra serve",
            fix=fix,
        )
    return missing
