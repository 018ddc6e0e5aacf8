"""``profile=true``: a trace of a few steps and a table of where their time went, in ``profile/`` of the run folder.

The trace opens in ui.perfetto.dev. The steps take a little longer, and come to the same bits.
"""

import gzip
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import profile, record_function
from transformers import TrainerCallback, TrainerControl, TrainerState

from runner.io.files import write_bytes, write_text
from runner.schema.text import read_tables

# Steps of a start before those that are recorded; of these the first warms up, and counts only if it is alone.
SKIPPED, STEPS = 2, 4
MAX_SECONDS, MAX_BYTES = 3, 64_000_000  # of recording, also within a step; of a trace, which is left out beyond
END = "end of step"
PARTS: dict[str, str] = read_tables(__file__)["parts"]


class Profile(TrainerCallback):
    """Records a few steps in a row, at most up to one that evaluates or saves; of several processes the first does."""

    live: ClassVar[list["Profile"]] = []  # that record, or would have if the training had not ended by an error

    def __init__(self, folder: Path):
        self.folder, self.steps, self.scopes = folder, 0, list[Any]()

    def on_train_begin(self, args, state: TrainerState, control, **_) -> None:
        self.first = max(state.global_step, min(state.global_step + SKIPPED, state.max_steps - STEPS))

    def on_step_begin(self, args, state: TrainerState, control, **_) -> None:
        if state.global_step == self.first and state.is_world_process_zero:
            for left in (*self.live,):
                left.end()
            self.live.append(self)
            self.hooks = [register_module_forward_pre_hook(self._enter)]
            self.hooks.append(register_module_forward_hook(self._leave, always_call=True))
            self.recorder, self.until = profile(), time.monotonic() + MAX_SECONDS
            self.recorder.start()

    def on_step_end(self, args, state, control: TrainerControl, **_) -> None:
        if self in self.live:
            with record_function(END):
                self.steps += 1
            if self.steps == STEPS or control.should_evaluate or control.should_save:
                self.end()

    def on_train_end(self, args, state, control, **_) -> None:
        self.end()

    def _enter(self, *_: object) -> None:
        """Record a module's forward pass, of those inside of each other the outermost."""
        if time.monotonic() > self.until and not self.scopes:
            self.end()
        name = "forward" if torch.is_grad_enabled() else "without gradient"
        self.scopes.append(nullcontext() if self.scopes or self not in self.live else record_function(name))
        self.scopes[-1].__enter__()

    def _leave(self, *_: object) -> None:
        self.scopes.pop().__exit__(None, None, None)

    def end(self) -> None:
        """Stop, where it records, and write down what was recorded."""
        if self not in self.live:
            return
        self.live.remove(self)
        for hook in self.hooks:
            hook.remove()
        self.recorder.stop()
        self.folder.mkdir(exist_ok=True)
        self.recorder.export_chrome_trace(str(trace := self.folder / "trace.json"))
        lines = [*table_lines(json.loads(trace.read_bytes())["traceEvents"]), ""]
        write_text(self.folder / "table.txt", "\n".join(lines))
        if len(packed := gzip.compress(trace.read_bytes(), compresslevel=1)) <= MAX_BYTES:
            write_bytes(self.folder / "trace.json.gz", packed)
        trace.unlink()


def table_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The parts of a step, by the clock of the process, and the operators without those inside of them, as lines.

    ``found`` are the events of a trace as Chrome knows them: with a name, a thread, a start and a duration.
    """
    events = sorted((each for each in found if each.get("ph") == "X" and "dur" in each), key=lambda each: each["ts"])
    ends = [each["ts"] + each["dur"] for each in events if each["name"] == END]
    ended, ends = len(ends), ends or [events[-1]["ts"]]
    until = begin = ends[0] if ends[1:] else events[0]["ts"]
    parts, own, calls = Counter[str](), Counter[str](), Counter[str]()
    open_events: dict[object, list[tuple[float, str]]] = {}  # of each thread those that an event may be inside of
    for each in events:
        name, start, end = each["name"], each["ts"], each["ts"] + each["dur"]
        part = next((part for first, part in PARTS.items() if name.startswith(first)), "")
        if part and until <= start and end <= ends[-1]:  # not inside of another one
            parts[part], until = parts[part] + each["dur"], end
        if each.get("cat") in ("cpu_op", "kernel", "gpu_memcpy", "gpu_memset"):
            above = open_events.setdefault((each["pid"], each["tid"]), [])
            while above and above[-1][0] <= start:
                above.pop()
            own.update({name: each["dur"], **({above[-1][1]: -each["dur"]} if above and above[-1][1] != name else {})})
            calls[name] += 1
            above.append((end, name))
    whole, steps = max(ends[-1] - begin, 1e-3), max(1, ended - 1)
    parts["between: loss, logs, callbacks, Python"] = whole - sum(parts.values())
    lines = [f"{steps if ended else 'part of a'} step{'s' * (steps > 1)}, {whole / 1e3 / steps:.1f} ms each"]
    lines += [f"  {spent / whole:6.1%}  {part}" for part, spent in parts.most_common()]
    lines += ["", "operators and kernels, of all that was recorded", "      ms     calls  name"]
    return lines + [f"{spent / 1e3:10.1f}{calls[name]:8}  {name[:90]}" for name, spent in own.most_common(20)]
