"""The model card of a run, which others will read: no paths of this machine and no secrets."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.io.distribution import NAME
from runner.io.files import JsonObject, read_json
from runner.io.secrets import form_of
from runner.report.axis import short_target
from runner.report.compare import find_changed_keys
from runner.report.facts import command_of, words_of
from runner.report.ranking import score_rows
from runner.report.render import fill_template
from runner.run.manifest import uses_of
from runner.run.record import RunRecord, read_run
from runner.schema.literal import number
from runner.schema.text import last_key, select, walk

# A path from the root or from a home, but no URL, runner://..., org/name or </tag>. The group is
# its last part, which may stay; of a short path nothing stays, since it may end in a person's name.
ROOTED = re.compile(
    r"""(?<![\w.:/<\\$}])~?(?:(?:/[\w.+@=-]+){2,}(/[\w.+@=-]+)|(?:/[\w.+@=-]+)+)/?"""
)
LIBRARIES = ("torch", "transformers", "trl", "peft", "datasets", "accelerate")
PARAMETER_COUNTS = ("parameters", "trainable")  # of the model, in a manifest
NOT_SHOWN = ("output_root", "launcher", "tracker", "allow")  # keys that say nothing of the model
FINGERPRINT_LETTERS = 16
MAX_RUNS = 100  # below one, that its card tells of


def to_card(
    run: RunRecord,
    copy: Sequence[str],
    license: str | None = None,
    pictures: Sequence[str] = (),
) -> str:
    """The model card of a run in Markdown, beginning with the fields that the hub reads.

    ``copy`` are notes on the exported copy, of which the first comes before the size of the model;
    ``pictures`` are the names of files beside the card.
    """
    path = str(select(run.cfg, "dataset.path") or "")
    runs = [*runs_below(run), run]
    public_sets: dict[str, None] = {}  # of the hub, which the runs read
    for below in runs:
        for name, value in walk(below.cfg.get("dataset")):
            if last_key(name) == "path" and isinstance(value, str) and is_hub_name(value):
                public_sets[value] = None
    model = run.manifest.get("model") or {}
    counts = [f"{number(model[key])} {key}" for key in PARAMETER_COUNTS if model.get(key)]
    model_size = ", ".join(counts)
    notes = [*copy[:1], model_size, *copy[1:]]
    scores = []
    for row in score_rows(run):
        name = row.name.removeprefix("eval_")
        scores.append([name, row.before, row.after, row.change.text])
    changed = []
    for key in find_changed_keys(run) or ():
        changed.append([f"`{key.key}`", f"`{key.ours}`", f"`{key.default}`"])
    # Each data set that the run read: its name, number of rows, and fingerprint.
    rows: list[list[object]] = []
    for name, node in walk(run.manifest.get("data")):
        if isinstance(node, Mapping) and "fingerprint" in node:
            fingerprint = str(node["fingerprint"])[:FINGERPRINT_LETTERS]
            rows.append([name, node.get("rows"), f"`{fingerprint}`"])
    # The requirements that install the libraries of the run, quoted for a shell.
    versions = run.manifest.get("versions") or {}
    pinned = []
    for library in LIBRARIES:
        if versions.get(library):
            version = versions[library].partition("+")[0]
            pinned.append(shlex.quote(f"{library}=={version}"))
    commands = [command_of(below) for below in runs if words_of(below) is not None]
    shown = {key: node for key, node in run.cfg.items() if key not in NOT_SHOWN}
    text = fill_template(
        "card.md",
        run=run,
        license=license,
        base=base_of(run),
        start=_start_of(run),
        path=path,
        public_sets=list(public_sets),
        index=_to_index(run, path),
        chain=[_describe_step(below) for below in runs] if len(runs) > 1 else [],
        trainer=short_target(run.cfg.get("trainer")),
        is_scorer=select(run.cfg, "trainer.head") == "score",
        scores=scores,
        rows=rows,
        changed=changed,
        package=NAME,
        pinned=pinned,
        commands=list(dict.fromkeys(commands)) if words_of(run) is not None else [],
        notes=[note for note in notes if note],
        pictures=pictures,
        shown=shown,
    )
    return public(text)


def public(text: str) -> str:
    """A text without paths of this machine and without words that look like secrets.

    >>> public("model.path=/home/me/models/base or runner://model/tiny")
    'model.path=<folder>/base or runner://model/tiny'
    >>> public("https://huggingface.co/org/name")
    'https://huggingface.co/org/name'
    """

    def masked(word: re.Match[str]) -> str:
        return "<secret>" if form_of(word[0]) else word[0]

    without_paths = ROOTED.sub(r"<folder>\1", text)
    return re.sub(r"\S+", masked, without_paths)


def runs_below(run: RunRecord, visited: set[Path] | None = None) -> list[RunRecord]:
    """The runs that a run builds on, each once, behind those that it builds on itself.

    ``visited`` are the folders that are listed already: files that a user may have changed could
    name each other in a circle.
    """
    if visited is None:
        visited = set()
    visited.add(run.folder.absolute())
    runs: list[RunRecord] = []
    for folder in uses_of(run.cfg).values():
        path = Path(folder).absolute()
        if path not in visited and len(visited) <= MAX_RUNS:
            earlier = read_run(Path(folder))
            runs += [*runs_below(earlier, visited), earlier]
    return runs


def _describe_step(run: RunRecord) -> list[str]:
    """A run of a chain as the cells of a row: name, trainer, start, data, and its first score."""
    trainer = short_target(run.cfg.get("trainer"))
    if run.cfg.get("peft"):
        trainer += f" with {short_target(run.cfg.get('peft'))}"
    rows = select(run.manifest, "data.train.rows")
    data = str(select(run.cfg, "dataset.path") or "rows of its own")
    if rows:
        data += f", {rows} rows"
    result = ""
    for row in score_rows(run)[:1]:
        result = f"{row.name.removeprefix('eval_')} {row.before} -> {row.after}"
    return [str(run.cfg.get("name")), trainer, _start_of(run), data, result]


def _start_of(run: RunRecord) -> str:
    """The model that a run began with: its path, or the name of the run that trained it."""
    start = str(select(run.cfg, "model.path") or "a new model")
    path = Path(start)
    is_of_run = path.name == "model" and (path.parent / "config.yaml").is_file()
    if not is_of_run:
        return start
    group = path.parent.parent
    return group.name


def _to_index(run: RunRecord, path: str) -> JsonObject | None:
    """The held-out scores as the hub reads them from the field ``model-index``."""
    is_scorer = select(run.cfg, "trainer.head") == "score"
    metrics = []
    for row in score_rows(run):
        if row.name in run.after:
            name = row.name.removeprefix("eval_")
            metrics.append({"type": name, "name": name, "value": run.after[row.name]})
    if not metrics:
        return None
    kind = path if is_hub_name(path) else Path(path).name or "rows"
    result = {
        "task": {"type": "text-classification" if is_scorer else "text-generation"},
        "dataset": {"name": kind, "type": kind},
        "metrics": metrics,
    }
    return {"name": run.cfg.get("name"), "results": [result]}


def base_of(run: RunRecord) -> str | None:
    """The model of the hub that a run began from, if need be through earlier runs; else None."""
    visited: set[Path] = set()
    while run.folder not in visited:
        visited.add(run.folder)
        start = select(run.cfg, "trainer.args.sft_model_path") or select(run.cfg, "model.path")
        path = str(start or "")
        if path:
            adapter = read_json(Path(path) / "adapter_config.json") or {}
            path = str(adapter.get("base_model_name_or_path") or path)
        if is_hub_name(path):
            return path
        earlier_folder = Path(path).parent
        if not (earlier_folder / "config.yaml").is_file():
            return None
        run = read_run(earlier_folder)
    return None


def is_hub_name(path: str) -> bool:
    """True where a path names a repository of the hub rather than a folder of this machine."""
    looks_like_repository = bool(re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", path))
    return looks_like_repository and not Path(path).exists()
