"""The model that a server loads: its name, and the folder or the file that holds it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from runner.command._inference import ModelRequest, to_file_name
from runner.command.serve_options import Options
from runner.io.files import display_path, read_json
from runner.io.terminal import quiet
from runner.run.seal import damage_of
from runner.run.weights import MODEL

Request = ModelRequest[Options]
MAX_NAME = 90  # letters; a name on the hub may have 96


@dataclass(frozen=True)
class ServedModel:
    """A model as plain transformers and vLLM load it."""

    name: str  # for clients
    path: str  # a folder, or a name on the hub
    dtype: str  # auto is that of the weights
    trust: bool  # in code that comes with it

    @property
    def is_folder(self) -> bool:
        """True for a model on this machine."""
        return Path(self.path).is_dir()


def find_gguf(request: Request) -> Path | None:
    """The newest file that ``export format=gguf`` has written for a run; None where none is."""
    if request.run is None or request.weights.name != MODEL:
        return None
    files = request.run.folder.glob("export*/*.gguf")
    return max(files, key=lambda file: file.stat().st_mtime, default=None)


def name_of(request: Request) -> str:
    """The name of a model for clients, which is one that the hub would allow."""
    name = request.run.folder.parent.name if request.run else request.name.rstrip("/")
    name = to_file_name(name.rpartition("/")[2])[:MAX_NAME]
    return re.sub(r"([-.])[-.]+", r"\1", name).strip("-.") or MODEL


@contextlib.contextmanager
def served_model(request: Request) -> Iterator[ServedModel]:
    """The model of a request, without an adapter; what is merged for it goes at the end."""
    model = request.experiment.model
    dtype = str(model.node.get("dtype") or "auto")
    source = request.weights.folder
    if source is None:
        source = Path(str(model.path)).expanduser()
    elif (source / "policy").is_dir():  # where PPO keeps it, beside its critic
        source = source / "policy"
    served = ServedModel(name_of(request), str(source), dtype, model.trusts_code)
    if not source.is_dir():
        yield replace(served, path=str(model.path))
        return
    if not _has_template(source):
        print("text      there is no chat template: only /v1/completions will answer")
    if not (source / "adapter_config.json").is_file():
        yield served
        return
    exported = _find_export(request)
    if exported is not None:
        print(f"weights   {display_path(exported)}, into which the adapter was merged")
        yield replace(served, path=str(exported))
        return
    from runner.model.merge import write_plain

    print("merging   the adapter into its base; export RUN would keep the result", flush=True)
    written = None if dtype == "auto" else dtype
    with TemporaryDirectory(prefix="runner-serve-") as folder:
        with quiet():
            write_plain(source, Path(folder), head="lm", dtype=written, trust=model.trusts_code)
        yield replace(served, path=folder)


def _has_template(folder: Path) -> bool:
    """True unless a folder holds a tokenizer without a chat template."""
    settings = read_json(folder / "tokenizer_config.json")
    if settings is None:
        return True
    return "chat_template" in settings or (folder / "chat_template.jinja").is_file()


def _find_export(request: Request) -> Path | None:
    """The folder to which the model of a run was exported; None where none is whole."""
    if request.run is None or request.weights.name != MODEL:
        return None
    folder = request.run.folder / "export"
    is_whole = (folder / "config.json").is_file() and not damage_of(folder)
    return folder if is_whole else None
