"""Shows some rows as the model will see them."""

import shutil
import sys
from collections.abc import Sequence

from runner.command import CommandLine
from runner.command._option import options_in, split_options, to_record
from runner.command._sheets import build_sheets, find_tokenizers, page_file, title_of
from runner.command.preview_options import Options
from runner.config.resolution import Composed
from runner.errors import ConfigError, Fault
from runner.io.files import write_text
from runner.io.terminal import print_error, quiet, shows_colours
from runner.launch.compose import stages
from runner.report.page import to_preview_page
from runner.report.tokens import MAX_WIDTH, Sheet, format_sheet
from runner.run.record import check_whole, find_runs
from runner.validate.configuration import find_dangers, find_frozen_faults
from runner.validate.hub_names import settle_hub
from runner.validate.start import check_parts


def main(line: CommandLine) -> int:
    """Print the preview of what the command line means; 2 where a training would be refused."""
    split = split_options(line.overrides, options_in(Options), "preview")
    ConfigError.refuse(split.faults)
    options = to_record(Options, split.options)
    if not line.runs:
        runs = stages.compose_runs(split.overrides, line.folders)
    elif not split.overrides:
        runs = _read_frozen(line.runs, is_trusted=options.trust)
    else:
        raise ConfigError(
            Fault(
                where="command line",
                found=" ".join(split.overrides),
                expected="either a run, which is frozen, or overrides",
                fix=f"python -m runner preview {line.runs[0]}",
            )
        )
    check_parts([runs])
    settle_hub([composed.cfg for composed in runs])
    sheets: list[Sheet] = []
    with quiet():
        for composed, cfg in zip(runs, find_tokenizers(runs), strict=True):
            sheets += build_sheets(cfg, options.rows, options.set, composed.stage)
    title = title_of(runs)
    if runs[0].stage:
        print(f"{title}\n")
    width = min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 24)).columns)
    in_colour = shows_colours(sys.stdout)
    texts = [format_sheet(sheet, colour=in_colour, width=width) for sheet in sheets]
    print("\n".join(texts), flush=True)
    if options.html not in ("false", "null"):
        path = page_file(runs[0], options.html)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, to_preview_page(title, sheets))
        print(f"page      {path}", flush=True)
    faults: list[Fault] = []
    for sheet in sheets:
        faults += sheet.faults
    if faults:
        print_error(ConfigError(dict.fromkeys(faults)))
        return ConfigError.code
    return 0


def _read_frozen(words: Sequence[str], *, is_trusted: bool) -> list[Composed]:
    """The configurations of runs; a folder can come from anybody, and be refused therefore.

    To load the tokenizer and the rows may run code that the configuration names.
    """
    records = find_runs(words, "preview", len(words))
    for record in records:
        check_whole(record)
    if not is_trusted:
        command = f"python -m runner preview {words[0]} trust=true"
        fix = f"{command}  (if you trust who wrote its config.yaml)"
        dangers = []
        for record in records:
            dangers += find_dangers(record.run.cfg, fix)
        ConfigError.refuse(dangers)
    faults: list[Fault] = []
    for record in records:
        faults += find_frozen_faults(record.run.cfg, f"{record.run}/config.yaml")
    ConfigError.refuse(faults)
    return [Composed(dict(record.run.cfg), []) for record in records]
