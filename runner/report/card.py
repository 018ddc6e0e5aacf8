"""A run as a model card, which is to be shown to others: without paths of this machine, and without secrets."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.io.distribution import NAME
from runner.io.files import read_json
from runner.io.secrets import form_of
from runner.report.axis import short_target
from runner.report.compare import differing
from runner.report.facts import command_of, words_of
from runner.report.objective import score_rows
from runner.report.render import fill_template
from runner.run.read import RunRecord, read_run
from runner.schema.text import number, select, walk

# A path from the root or from a home; a URL, runner://..., org/name and </tag> are none. Its group is its last part;
# a short one has none, because it may end in somebody's name.
ROOTED = re.compile(r"""(?<![\w.:/<\\$}])~?(?:(?:/[\w.+@=-]+){2,}(/[\w.+@=-]+)|(?:/[\w.+@=-]+)+)/?""")
LIBRARIES = ("torch", "transformers", "trl", "peft", "datasets", "accelerate")
NOT_SHOWN = ("output_root", "launcher", "tracker", "allow")  # keys that say nothing of the model


def to_card(run: RunRecord, copy: Sequence[str], license: str | None = None, pictures: Sequence[str] = ()) -> str:
    """The model card of a run in Markdown, beginning with the fields that the hub reads; ``copy`` are notes on it."""
    path = str(select(run.cfg, "dataset.path") or "")
    facts: dict[str, object] = {"license": license, "base": base_of(run), "path": path, "is_public": is_hub_name(path)}
    facts |= {"trainer": short_target(run.cfg.get("trainer")), "is_scorer": select(run.cfg, "trainer.head") == "score"}
    data = [(n, at) for n, at in walk(run.manifest.get("data")) if isinstance(at, Mapping) and "fingerprint" in at]
    model, versions = run.manifest.get("model") or {}, run.manifest.get("versions") or {}
    counts = [f"{number(model[key])} {key}" for key in ("parameters", "trainable") if model.get(key)]
    text = fill_template(
        "card.md",
        run=run,
        **facts,
        scores=[(name.removeprefix("eval_"), *others) for name, *others in score_rows(run)],
        rows=[(name, node.get("rows"), f"`{str(node['fingerprint'])[:16]}`") for name, node in data],
        changed=[[f"`{text}`" for text in row] for row in differing(run) or ()],
        package=NAME,
        pinned=[shlex.quote(f"{name}=={versions[name].partition('+')[0]}") for name in LIBRARIES if versions.get(name)],
        command="" if words_of(run) is None else command_of(run),
        notes=[*copy[:1], *([", ".join(counts)] if counts else []), *copy[1:]],
        pictures=pictures,
        shown={key: node for key, node in run.cfg.items() if key not in NOT_SHOWN},
    )
    return public(text)


def public(text: str) -> str:
    """A text without paths of this machine, and without any word that looks like a secret.

    >>> public("model.path=/home/me/models/base and https://huggingface.co/org/name, runner://model/tiny")
    'model.path=<folder>/base and https://huggingface.co/org/name, runner://model/tiny'
    """
    return re.sub(r"\S+", lambda word: "<secret>" if form_of(word[0]) else word[0], ROOTED.sub(r"<folder>\1", text))


def base_of(run: RunRecord) -> str | None:
    """The model of the hub that a run began from, through the runs that it builds on; None where it is no such one."""
    seen: set[Path] = set()
    while run.folder not in seen:
        seen.add(run.folder)
        path = str((run.cfg.get("model") or {}).get("path") or "")
        adapter = read_json(Path(path) / "adapter_config.json") if path else None
        path = str((adapter or {}).get("base_model_name_or_path") or path)
        if is_hub_name(path):
            return path
        if not (Path(path).parent / "config.yaml").is_file():
            return None
        run = read_run(Path(path).parent)
    return None


def is_hub_name(path: str) -> bool:
    """True where a path is the name of a repository rather than a folder of this machine."""
    return bool(re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", path)) and not Path(path).exists()
