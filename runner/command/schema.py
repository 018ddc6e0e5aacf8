"""Writes JSON Schemas for a folder of groups, and says which line names that of each file."""

from pathlib import Path

from runner.command import CommandLine
from runner.command._editor_schemas import FOLDER, LINE, build_schemas, schema_line, schema_text
from runner.command._option import read_options
from runner.command.schema_options import Options
from runner.errors import ConfigError, Fault
from runner.io.files import display_path, write_text
from runner.io.terminal import print_visible
from runner.run import installed_version

DIALECT = "http://json-schema.org/draft-07/schema#"  # the one that every editor knows
LIBRARIES = ("trl", "transformers", "peft")


def main(line: CommandLine) -> int:
    """Write the schemas, and list the files that do not name theirs yet."""
    if line.runs:
        raise ConfigError(
            Fault(
                where="command line",
                found=" ".join(line.runs),
                expected="to=FOLDER, a folder of groups",
                fix=f"python -m runner schema to={line.runs[0]}",
            )
        )
    options = read_options(line, Options)
    folder = Path("conf")
    if options.to:
        folder = Path(options.to)
    elif line.folders:
        folder = line.folders[0]
    schemas = build_schemas([folder, *line.folders])
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    versions = [f"{name} {installed_version(name)}" for name in LIBRARIES]
    comment = f"python -m runner schema, from {', '.join(versions)}"
    for name, schema in schemas.items():
        whole = {
            "$schema": DIALECT,
            "$comment": comment,
            **schema,
        }
        write_text(folder / FOLDER / f"{name}.json", schema_text(whole))
    lines = [f"wrote     {len(schemas)} schemas to {display_path(folder / FOLDER)}/"]
    lacking: dict[str, list[str]] = {}
    for file in sorted(folder.glob("*/*.yaml")):
        text = file.read_text(encoding="utf-8", errors="replace")
        line_of_file = schema_line(text, file.parent.name)
        if LINE not in text and line_of_file:
            lacking.setdefault(line_of_file, []).append(display_path(file))
    for line_of_file, files in lacking.items():
        lines.append(f"add       {line_of_file}")
        lines.append(f"to        {', '.join(files)}")
    print_visible("\n".join(lines))
    return 0
