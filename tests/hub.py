"""A model hub on this machine, so that the real loading code runs where no hub can be reached.

Here is a server on 127.0.0.1 that speaks the routes of the hub's HTTP API which huggingface_hub,
transformers and datasets really use, and ``serve_all``, which puts the models and rows of ``tiny``
up under the names of the real ones. The libraries find it through ``HF_ENDPOINT``, which they read
when they are imported: run the product in a subprocess with ``hub.environment(home)``.

Left out on purpose: redirects to a content network; Xet and LFS uploads (every file is told to come
inline, which ``Dataset.push_to_hub`` cannot do); pull requests; search; and the dataset viewer,
whose host name the libraries derive from the endpoint and do without when it cannot be found.
"""

import base64
import hashlib
import io
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from pkgutil import resolve_name
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow
import pytest
import yaml
from pyarrow import parquet
from tiny import CHATML, MODELS, RECIPE_MODELS, RECIPES, ROWS, rows_of, tiny_model

TOKEN = "hf_loopback"  # may read private and gated repositories, and may write
STRANGER = "hf_stranger"  # a valid account without access
USER = "tester"  # whose token TOKEN is, and who owns repositories created without a namespace
DATE = "2024-01-02T03:04:05.000Z"
LARGE_SUFFIXES = (".arrow", ".bin", ".parquet", ".pt", ".safetensors")


# --- What the hub holds -------------------------------------------------------------------------


@dataclass(frozen=True)
class Blob:
    """The bytes of one file; a large one is named by sha256, as what the hub keeps in LFS."""

    content: bytes
    large: bool = False

    @cached_property
    def oid(self) -> str:
        """The file's name in git: sha1 over a short header and the bytes."""
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()

    @cached_property
    def etag(self) -> str:
        return hashlib.sha256(self.content).hexdigest() if self.large else self.oid

    def entry(self, path: str) -> dict:
        """This file's entry in the listing of a tree."""
        size = len(self.content)
        lfs = {"lfs": {"oid": self.etag, "size": size, "pointerSize": 134}} if self.large else {}
        return {"type": "file", "oid": self.oid, "size": size, "path": path} | lfs


@dataclass
class Repo:
    """One repository: commits by their sha, branches and tags by name."""

    kind: str
    id: str
    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, blobs: dict[str, Blob], revision: str = "main") -> str:
        """Make these files the whole content of a revision, and return the commit's sha.

        A revision of forty hex digits is taken as the sha itself; it then belongs to no branch.
        """
        if re.fullmatch(r"[0-9a-f]{40}", revision):
            sha = revision
        else:
            named = sorted((path, blob.oid) for path, blob in blobs.items())
            listing = json.dumps([self.kind, self.id, named]).encode()
            sha = self.branches[revision] = hashlib.sha1(listing).hexdigest()
        self.commits[sha] = blobs
        return sha

    def sha(self, revision: str) -> str | None:
        """The commit that a branch, a tag or a sha means here, or None."""
        return revision if revision in self.commits else self.branches.get(revision)

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """The content of every file of a revision, by path."""
        return {path: blob.content for path, blob in self.commits[self.sha(revision)].items()}


@dataclass(frozen=True)
class Upload:
    """One commit that a client pushed, as it stood when it came in."""

    kind: str
    repo_id: str
    private: bool
    revision: str
    message: str
    files: dict[str, bytes]


# --- What goes over the wire --------------------------------------------------------------------


@dataclass
class Request:
    """One request as it came in; header names are in lower case, ``path`` is still quoted."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes = b""
    status: int = 0

    @property
    def token(self) -> str | None:
        return self.headers.get("authorization", "").removeprefix("Bearer ") or None

    def asks(self, name: str) -> bool:
        return self.query.get(name, [""])[0].lower() in ("true", "1")


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Refusal(Exception):
    """An answer that is an error, with the headers from which clients make their exceptions."""

    def __init__(self, status: int, message: str, code: str = "", **headers: str):
        super().__init__(message)
        named = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {}) | headers
        self.answer = to_json({"error": message}, status, **named)


def to_json(value: object, status: int = 200, **headers: str) -> Answer:
    body = json.dumps(value).encode()
    return Answer(status, body, {"Content-Type": "application/json"} | headers)


REPO = r"(?P<repo_id>[^/]+(?:/[^/]+)?)"
API = rf"/api/(?P<kind>model|dataset)s/{REPO}"
REVISION = r"(?P<revision>[^/]+)"
ROUTES = [
    ("info", "GET", rf"{API}(?:/revision/{REVISION})?"),
    ("tree", "GET", rf"{API}/tree/{REVISION}(?:/(?P<path>.+))?"),
    ("paths_info", "POST", rf"{API}/paths-info/{REVISION}"),
    ("preupload", "POST", rf"{API}/preupload/{REVISION}"),
    ("commit", "POST", rf"{API}/commit/{REVISION}"),
    ("create", "POST", "/api/repos/create"),
    ("validate", "POST", "/api/validate-yaml"),
    ("whoami", "GET", "/api/whoami-v2"),
    ("resolve", "GET", rf"/(?:(?P<kind>dataset)s/)?{REPO}/resolve/{REVISION}/(?P<path>.+)"),
]


def match_route(method: str, path: str) -> tuple[str, dict[str, str]]:
    """The name of the route that a request takes, and the unquoted parts of its path."""
    verb = "GET" if method == "HEAD" else method
    for name, expected, pattern in ROUTES:
        if verb == expected and (match := re.fullmatch(pattern, path)):
            parts = {part: unquote(text) for part, text in match.groupdict().items() if text}
            if name == "resolve":
                parts.setdefault("kind", "model")
            return name, parts
    raise Refusal(404, "this route is not spoken here")


class _Handler(BaseHTTPRequestHandler):
    """HTTP to Request and Answer back to HTTP; everything else is the hub's."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: a delayed ACK costs 40 ms each

    def _serve(self) -> None:
        url = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        query = parse_qs(url.query, keep_blank_values=True)
        answer = self.server.hub.answer(Request(self.command, url.path, query, headers, body))
        self.send_response(answer.status)
        for name, value in ({"Content-Length": str(len(answer.body))} | answer.headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

    def log_message(self, *_: object) -> None:
        """Nothing on stderr: the requests are in ``hub.requests``."""


# --- The hub ------------------------------------------------------------------------------------


class Hub:
    """A server that starts on entry and stops on exit, and remembers what clients asked of it.

    ``requests`` holds every request in order, ``counters`` their number by route (the names in
    ``ROUTES``, or "unknown"), ``uploads`` every commit that was pushed.
    """

    def __init__(self, page_size: int = 1000):
        self.page_size = page_size
        self.repos: dict[tuple[str, str], Repo] = {}
        self.requests: list[Request] = []
        self.counters: Counter[str] = Counter()
        self.uploads: list[Upload] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.hub = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def environment(self, home: Path, token: str | None = None) -> dict[str, str]:
        """The whole environment of a subprocess: this hub, a cache in ``home``, and no proxy."""
        foreign = ("HF_", "HUGGING", "TRANSFORMERS_")
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(foreign) and not name.lower().endswith("_proxy")
        }
        variables = {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "*",
        }
        return inherited | variables | ({"HF_TOKEN": token} if token else {})

    def forget(self) -> None:
        """Empty the log, so that a test reads only its own requests."""
        with self._lock:
            self.requests.clear()
            self.counters.clear()
            self.uploads.clear()

    # Filling it.

    def add_files(
        self,
        kind: str,
        repo_id: str,
        files: dict[str, bytes],
        *,
        revision: str = "main",
        private: bool = False,
        gated: bool = False,
    ) -> str:
        """Serve these files as one revision of a repository and return the commit's sha."""
        repo = self.repos.setdefault((kind, repo_id), Repo(kind, repo_id))
        repo.private = private
        repo.gated = gated
        blobs = {path: to_blob(path, content) for path, content in files.items()}
        return repo.commit(blobs, revision)

    def add_model(self, repo_id: str, folder: Path, **how: str | bool) -> str:
        """Serve a folder as a model; ``how`` is revision, private, gated, as in ``add_files``."""
        return self.add_files("model", repo_id, read_folder(folder), **how)

    def add_dataset(
        self, repo_id: str, configs: dict[str, dict[str, list[dict]]], **how: str | bool
    ) -> str:
        """Serve config -> split -> rows as parquet files and a README that names them."""
        return self.add_files("dataset", repo_id, to_dataset_files(configs), **how)

    def repo(self, repo_id: str, kind: str = "model") -> Repo:
        return self.repos[kind, repo_id]

    # Answering.

    def answer(self, request: Request) -> Answer:
        """Answer one request at a time; each goes to the log with its status."""
        name = "unknown"
        with self._lock:
            try:
                name, parts = match_route(request.method, request.path)
                answer = getattr(self, f"_answer_{name}")(request, **parts)
            except Refusal as refusal:
                answer = refusal.answer
            request.status = answer.status
            self.requests.append(request)
            self.counters[name] += 1
        return answer

    def _open(self, request: Request, kind: str, repo_id: str) -> Repo:
        """The repository, for someone who may know that it exists."""
        if request.token not in (None, TOKEN, STRANGER):
            raise Refusal(401, "Invalid credentials in Authorization header")
        repo = self.repos.get((kind, repo_id))
        if repo is None or (repo.private and request.token != TOKEN):
            # The real hub never reveals a private repository; without a token it answers 401.
            raise Refusal(404 if request.token else 401, "Repository not found", "RepoNotFound")
        return repo

    def _open_commit(
        self, request: Request, kind: str, repo_id: str, revision: str
    ) -> tuple[Repo, str]:
        repo = self._open(request, kind, repo_id)
        sha = repo.sha(revision)
        if sha is None:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return repo, sha

    def _require_owner(self, request: Request) -> None:
        if request.token != TOKEN:
            raise Refusal(403 if request.token == STRANGER else 401, "You may not write here")

    def _answer_whoami(self, request: Request) -> Answer:
        self._require_owner(request)
        return to_json({"type": "user", "name": USER, "orgs": []})

    def _answer_info(
        self, request: Request, kind: str, repo_id: str, revision: str = "main"
    ) -> Answer:
        repo, sha = self._open_commit(request, kind, repo_id, revision)
        detailed = request.asks("blobs")
        files = [to_sibling(*file, detailed) for file in repo.commits[sha].items()]
        about = {"id": repo.id, "sha": sha, "tags": [], "createdAt": DATE, "lastModified": DATE}
        access = {"private": repo.private, "gated": "manual" if repo.gated else False}
        return to_json(about | access | {"siblings": files})

    def _answer_tree(
        self, request: Request, kind: str, repo_id: str, revision: str, path: str = ""
    ) -> Answer:
        repo, sha = self._open_commit(request, kind, repo_id, revision)
        entries = list_tree(repo.commits[sha], path, request.asks("recursive"))
        if path and not entries:
            raise Refusal(404, f"{path} does not exist on {revision}", "EntryNotFound")
        start = int(request.query.get("cursor", ["0"])[0])
        end = start + self.page_size
        headers = {}
        if end < len(entries):
            flags = "".join(f"{flag}={request.asks(flag)}&" for flag in ("recursive", "expand"))
            headers["Link"] = f'<{self.url}{request.path}?{flags}cursor={end}>; rel="next"'
        page = entries[start:end]
        if request.asks("expand"):
            page = [dated(entry, sha) for entry in page]
        return to_json(page, **headers)

    def _answer_paths_info(
        self, request: Request, kind: str, repo_id: str, revision: str
    ) -> Answer:
        """Entries for the paths that exist; the others are left out, as on the real hub."""
        repo, sha = self._open_commit(request, kind, repo_id, revision)
        asked = parse_qs(request.body.decode())
        entries = list_tree(repo.commits[sha], "", recursive=True)
        entries_found = [entry for entry in entries if entry["path"] in asked.get("paths", [])]
        expand = asked.get("expand", [""])[0].lower() == "true"
        return to_json([dated(entry, sha) for entry in entries_found] if expand else entries_found)

    def _answer_resolve(
        self, request: Request, kind: str, repo_id: str, revision: str, path: str
    ) -> Answer:
        repo, sha = self._open_commit(request, kind, repo_id, revision)
        if repo.gated and request.token != TOKEN:
            status = 403 if request.token else 401
            raise Refusal(status, f"Access to {repo_id} is restricted", "GatedRepo")
        if path not in repo.commits[sha]:
            # With the commit the client remembers, even offline, that the file does not exist.
            raise Refusal(404, "Entry not found", "EntryNotFound", **{"X-Repo-Commit": sha})
        blob = repo.commits[sha][path]
        headers = {"ETag": f'"{blob.etag}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        if blob.large:
            headers |= {"X-Linked-ETag": f'"{blob.etag}"', "X-Linked-Size": str(len(blob.content))}
        return cut(blob.content, request.headers.get("range"), headers)

    def _answer_create(self, request: Request) -> Answer:
        self._require_owner(request)
        asked = json.loads(request.body)
        kind = asked.get("type", "model")
        repo_id = f"{asked.get('organization') or USER}/{asked['name']}"
        address = f"{self.url}/{'datasets/' if kind == 'dataset' else ''}{repo_id}"
        exists = (kind, repo_id) in self.repos
        if not exists:  # an existing repository keeps its visibility
            private = asked.get("visibility") == "private"  # public by default
            repo = self.repos[kind, repo_id] = Repo(kind, repo_id, private)
            repo.commit({})
        return to_json({"url": address, "name": repo_id}, 409 if exists else 200)

    def _answer_validate(self, request: Request) -> Answer:
        return to_json({"errors": [], "warnings": []})

    def _answer_preupload(self, request: Request, kind: str, repo_id: str, revision: str) -> Answer:
        """Make every file come inline, and report which of them exist."""
        self._require_owner(request)
        repo, sha = self._open_commit(request, kind, repo_id, revision)
        present = {path: blob.oid for path, blob in repo.commits[sha].items()}
        names = [file["path"] for file in json.loads(request.body)["files"]]
        fixed = {"uploadMode": "regular", "shouldIgnore": False}
        return to_json(
            {"files": [{"path": name, "oid": present.get(name)} | fixed for name in names]}
        )

    def _answer_commit(self, request: Request, kind: str, repo_id: str, revision: str) -> Answer:
        self._require_owner(request)
        repo, parent = self._open_commit(request, kind, repo_id, revision)
        head, *operations = [json.loads(line) for line in request.body.splitlines()]
        blobs = dict(repo.commits[parent])
        for operation in operations:
            apply_operation(blobs, operation["key"], operation["value"])
        sent = {line["value"]["path"] for line in operations if line["key"] == "file"}
        files = {path: blobs[path].content for path in sorted(sent & blobs.keys())}
        message = head["value"]["summary"]
        sha = repo.commit(blobs, revision)
        self.uploads.append(Upload(kind, repo_id, repo.private, revision, message, files))
        return to_json({"commitOid": sha, "commitUrl": f"{self.url}/{repo_id}/commit/{sha}"})


def to_blob(path: str, content: bytes) -> Blob:
    return Blob(content, path.endswith(LARGE_SUFFIXES))


def read_folder(folder: Path) -> dict[str, bytes]:
    """The content of every file under a folder, by its path in there."""
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def to_sibling(path: str, blob: Blob, detailed: bool) -> dict:
    """A file's entry in the info of a repository."""
    if not detailed:
        return {"rfilename": path}
    size = len(blob.content)
    lfs = {"lfs": {"sha256": blob.etag, "size": size, "pointerSize": 134}} if blob.large else {}
    return {"rfilename": path, "size": size, "blobId": blob.oid} | lfs


def list_tree(blobs: dict[str, Blob], folder: str, recursive: bool) -> list[dict]:
    """The files and folders under a folder, directly or at any depth, sorted by path."""
    prefix = f"{folder.rstrip('/')}/" if folder else ""
    entries = {}
    for path, blob in blobs.items():
        if not path.startswith(prefix):
            continue
        steps = path.removeprefix(prefix).split("/")
        for depth in range(1, len(steps)):
            parent = prefix + "/".join(steps[:depth])
            oid = hashlib.sha1(parent.encode()).hexdigest()
            entries[parent] = {"type": "directory", "oid": oid, "size": 0, "path": parent}
        entries[path] = blob.entry(path)
    shown = [path for path in sorted(entries) if recursive or "/" not in path.removeprefix(prefix)]
    return [entries[path] for path in shown]


def dated(entry: dict, sha: str) -> dict:
    """A tree entry with the keys that ``expand`` adds."""
    return entry | {"lastCommit": {"id": sha, "title": "made for a test", "date": DATE}}


def cut(content: bytes, wanted: str | None, headers: dict[str, str]) -> Answer:
    """The whole content, or the part that a Range header asks for (one range only)."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted or "")
    if not match or match.groups() == ("", ""):
        return Answer(200, content, headers)
    first, last = match.groups()
    size = len(content)
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= end:
        return Answer(416, b"", headers | {"Content-Range": f"bytes */{size}"})
    place = {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
    return Answer(206, content[start:end], headers | place)


def apply_operation(blobs: dict[str, Blob], key: str, value: dict) -> None:
    """Carry one line of a pushed commit out on the files."""
    path = value["path"]
    if key == "file":
        blobs[path] = to_blob(path, base64.b64decode(value["content"]))
    elif key == "deletedFile" and path in blobs:
        del blobs[path]
    elif key == "deletedFolder":
        for inner in [name for name in blobs if name.startswith(f"{path.rstrip('/')}/")]:
            del blobs[inner]
    else:
        raise Refusal(400, f"cannot do {key} on {path}")


# --- Data sets ----------------------------------------------------------------------------------


def to_dataset_files(configs: dict[str, dict[str, list[dict]]]) -> dict[str, bytes]:
    """The files of a data set as ``push_to_hub`` lays them out: a parquet each split, a card."""
    files = {}
    named = []
    described = []
    for config, splits in configs.items():
        folder = "data" if config == "default" else config
        tables = {split: pyarrow.Table.from_pylist(rows) for split, rows in splits.items()}
        contents = {split: to_parquet(table) for split, table in tables.items()}
        files |= {f"{folder}/{split}-00000-of-00001.parquet": contents[split] for split in splits}
        paths = [{"split": split, "path": f"{folder}/{split}-*"} for split in splits]
        named.append({"config_name": config, "data_files": paths})
        size = sum(map(len, contents.values()))
        described.append({"config_name": config, "download_size": size} | describe(tables))
    card = yaml.safe_dump({"configs": named, "dataset_info": described}, sort_keys=False)
    return {"README.md": f"---\n{card}---\nRows made for tests.\n".encode()} | files


def to_parquet(table: pyarrow.Table) -> bytes:
    with io.BytesIO() as file:
        parquet.write_table(table, file)
        return file.getvalue()


def describe(tables: dict[str, pyarrow.Table]) -> dict:
    """``dataset_info`` of a card: features and sizes of the splits, which clients check."""
    features = [to_feature(column) for column in next(iter(tables.values())).schema]
    splits = [
        {"name": name, "num_bytes": table.nbytes, "num_examples": table.num_rows}
        for name, table in tables.items()
    ]
    size = sum(table.nbytes for table in tables.values())
    return {"features": features, "splits": splits, "dataset_size": size}


def to_feature(column: pyarrow.Field) -> dict:
    """One column as a card writes it, with its name."""
    kind, value = to_type(column.type)
    return {"name": column.name, kind: value}


def to_type(arrow: pyarrow.DataType) -> tuple[str, object]:
    """A type as a card writes it: a plain one by name, structs (chat messages) and lists nested."""
    if pyarrow.types.is_list(arrow):
        kind, value = to_type(arrow.value_type)
        return "list", value if kind in ("dtype", "struct") else {kind: value}
    if pyarrow.types.is_struct(arrow):
        return "struct", [to_feature(inner) for inner in arrow]
    return "dtype", "float64" if pyarrow.types.is_float64(arrow) else str(arrow)


# --- All of it, under the real names ------------------------------------------------------------


def serve_all(hub: Hub, folder: Path) -> None:
    """Put up every model in ``MODELS`` (built under ``folder``) and every data set in ``ROWS``."""
    for seed, (repo_id, (architecture, dtype, head)) in enumerate(MODELS.items()):
        home = Path(folder) / repo_id
        hub.add_model(repo_id, tiny_model(home, architecture, head, seed=seed, dtype=dtype))
    for repo_id in ROWS:
        hub.add_dataset(repo_id, rows_of(repo_id))


def serve_recipes(hub: Hub, folder: Path) -> None:
    """Serve what the recipes in conf/experiment name: one model and tokenizer under many names."""
    files = {head: read_folder(tiny_model(folder / head, head=head)) for head in ("lm", "score")}
    marked = CHATML.replace("{{ '<|im_start|>'", "{% generation %}{{ '<|im_start|>'").replace(
        "{% endfor", "{% endgeneration %}{% endfor"
    )
    for repo_id, revision in RECIPE_MODELS:
        files_of_repo = dict(files["score" if repo_id.endswith("RM") else "lm"])
        files_of_repo |= {"chat_template.jinja": marked.encode()} if "SmolLM3" in repo_id else {}
        hub.add_files("model", repo_id, files_of_repo, revision=revision)
    for repo_id in RECIPES:
        hub.add_dataset(repo_id, rows_of(repo_id))


def offline(words: list[str]) -> int | None:
    """Call a function with the words after its name, without access to the hub; return the result.

    In a process that is forked from one for which the hub is there: a ``door`` of the tests. The
    libraries read ``HF_HUB_OFFLINE`` as they are imported, and keep these values of it.
    """
    import datasets.config
    import huggingface_hub.constants

    os.environ["HF_HUB_OFFLINE"] = "1"
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    datasets.config.HF_HUB_OFFLINE = datasets.config.HF_DATASETS_OFFLINE = True
    door, *words = words
    return resolve_name(door)(words)


@pytest.fixture(scope="session", name="hub")
def served_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterable[Hub]:
    """A running hub with everything of ``serve_all`` on it; import this name in conftest.py."""
    with Hub() as hub:
        serve_all(hub, tmp_path_factory.mktemp("hub"))
        yield hub
