"""A run as a model card: what the model is, what it was trained on, what came out, and the command that repeats it.

A card is made to be shown to others, so that paths of this machine and secrets are taken out of everything in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from runner.io.files import read_json
from runner.io.secrets import looks_secret
from runner.report.axis import short_target
from runner.report.number import number
from runner.report.repeat import words_of
from runner.report.single import differing, score_rows
from runner.run.read import RunRecord, read_run
from runner.schema import walk

# A path from the root or from a home; a URL, runner://..., org/name and </tag> are none.
ROOTED = re.compile(r"""(?<![\w.:/<\\$}])(~?(?:/[\w.+@=-]+)+)/?""")
LIBRARIES = ("torch", "transformers", "trl", "peft", "datasets", "accelerate")


@dataclass(frozen=True)
class Export:
    """An export as it was written: its precision, whether an adapter was merged, and notes on that."""

    dtype: str
    merged: bool
    notes: Sequence[str] = ()
    license: str | None = None


def to_card(run: RunRecord, export: Export, pictures: Sequence[str] = ()) -> str:
    """The model card of a run in Markdown, beginning with the fields that the hub reads."""
    base = base_of(run)
    parts = [
        f"---\n{yaml.safe_dump(fields_of(run, export, base), sort_keys=False, allow_unicode=True)}---",
        f"# {run.cfg.get('name')}",
        _sentence(run, base),
        *_section("Results on held-out rows", _results(run)),
        *_section("Data", _data(run)),
        *_section("What differs from the defaults", _differences(run)),
        *_section("Repeat", _repeat(run)),
        *_section("This copy", "\n".join(f"- {note}" for note in _copy(run, export))),
        *_section("Curves", "\n".join(f"![{Path(name).stem}]({name})" for name in pictures)),
        *_section("The whole configuration", _configuration(run)),
    ]
    return "\n\n".join(public(part) for part in parts) + "\n"


def public(text: str) -> str:
    """A text without paths of this machine, and without any word that looks like a secret.

    >>> public("model.path=/home/me/models/base and https://huggingface.co/org/name, runner://model/tiny")
    'model.path=<folder>/base and https://huggingface.co/org/name, runner://model/tiny'
    """
    text = ROOTED.sub(lambda match: _rootless(match[1].split("/")), text)
    return re.sub(r"\S+", lambda match: "<secret>" if looks_secret(match[0]) else match[0], text)


def _rootless(parts: list[str]) -> str:
    """The last part of a path; nothing of a short one, which may end in somebody's name."""
    return f"<folder>/{parts[-1]}" if len(parts) > 3 else "<folder>"


def fields_of(run: RunRecord, export: Export, base: str | None) -> dict[str, Any]:
    """The fields of the card's head: what the hub sorts and links by."""
    trainer = short_target(run.cfg.get("trainer"))
    path = str((run.cfg.get("dataset") or {}).get("path") or "")
    fields = {
        "license": export.license,
        "base_model": base,
        "base_model_relation": "finetune" if base else None,
        "datasets": [path] if is_hub_name(path) else None,
        "library_name": "transformers",
        "pipeline_tag": "text-classification" if _head(run) == "score" else "text-generation",
        "tags": ["trl", trainer.lower(), "runner"],
    }
    return {key: entry for key, entry in fields.items() if entry}


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
    """True where a path is the name of a repository rather than a folder of this machine.

    >>> is_hub_name("org/name"), is_hub_name("runner://model/tiny"), is_hub_name("/models/base"), is_hub_name("a/b/c")
    (True, False, False, False)
    """
    return bool(re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", path)) and not Path(path).exists()


def _section(title: str, text: str) -> list[str]:
    return [f"## {title}\n\n{text}"] if text else []


def _sentence(run: RunRecord, base: str | None) -> str:
    node = run.cfg.get("model") or {}
    begun = f"[{base}](https://huggingface.co/{base})" if base else str(node.get("path") or "a new model")
    goal = "A reward model" if _head(run) == "score" else "A language model"
    rows = (run.cfg.get("dataset") or {}).get("path") or "rows of its own"
    return f"{goal}, trained by {short_target(run.cfg.get('trainer'))} from {begun} on {rows}."


def _head(run: RunRecord) -> str:
    return str((run.cfg.get("trainer") or {}).get("head", "lm"))


def _results(run: RunRecord) -> str:
    rows = [(name.removeprefix("eval_"), before, after) for name, before, after in score_rows(run)]
    return _table(("score", "before", "after"), rows)


def _data(run: RunRecord) -> str:
    """Every set of rows that the manifest tells of, with its dotted name."""
    facts = {name: node for name, node in walk(run.manifest.get("data")) if isinstance(node, Mapping)}
    sets = {name: node for name, node in facts.items() if "fingerprint" in node}
    rows = [(name, str(node.get("rows")), f"`{str(node['fingerprint'])[:16]}`") for name, node in sets.items()]
    return _table(("set", "rows", "fingerprint"), rows)


def _differences(run: RunRecord) -> str:
    return _table(("key", "here", "default"), [(f"`{key}`", f"`{a}`", f"`{b}`") for key, a, b in differing(run) or ()])


def _repeat(run: RunRecord) -> str:
    words = words_of(run)
    if words is None:
        return ""
    import shlex

    versions = run.manifest.get("versions") or {}
    pinned = [f"{name}=={versions[name].partition('+')[0]}" for name in LIBRARIES if versions.get(name)]
    return f"```bash\npip install {' '.join(pinned)}\n{shlex.join(['python', '-m', 'runner', *words])}\n```"


def _copy(run: RunRecord, export: Export) -> list[str]:
    kept = "the adapter was merged into its base in float32" if export.merged else "the weights as they were trained"
    model = run.manifest.get("model") or {}
    counts = [f"{number(model[key])} {key}" for key in ("parameters", "trainable") if model.get(key)]
    return [f"{kept}, written as {export.dtype}", *([", ".join(counts)] if counts else []), *export.notes]


def _configuration(run: RunRecord) -> str:
    kept = {key: node for key, node in run.cfg.items() if key not in ("output_root", "launcher", "tracker", "allow")}
    text = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)
    return f"<details>\n\n```yaml\n{text}```\n\n</details>"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; nothing without rows."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in (titles, *cells)]
    return "\n".join([lines[0], f"|{'|'.join('---' for _ in titles)}|", *lines[1:]]) if rows else ""
