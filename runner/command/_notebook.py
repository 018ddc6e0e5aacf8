"""The progress of a training in the output of a notebook's cell, drawn over and over.

Nothing is imported for it: a notebook has IPython loaded already, and elsewhere there is no cell.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.report.run_page import to_cell_html
from runner.run import Run
from runner.run.record import read_run

REFRESH_SECONDS = 2.0  # between two pictures
DRAWN = "step "  # begins a line that the picture shows in another form


@dataclass
class Cell:
    """The output of the cell in which some runs train, one after the other."""

    runs: Sequence[Run]
    handle: Any = None  # of what is shown, from the first picture on
    next_time: float = field(default_factory=time.monotonic)

    def takes(self, line: str) -> bool:
        """True for a line that is drawn, which is done if the last picture is old enough."""
        if not line.startswith(DRAWN):
            return False
        if time.monotonic() < self.next_time:
            return True
        self.next_time = time.monotonic() + REFRESH_SECONDS
        return self.draw()

    def draw(self) -> bool:
        """Show the run that trains now, in the place of what is shown already.

        False, with a line that says why, where that fails: a training must not end by its picture.
        """
        from IPython.display import HTML, display

        begun = [run for run in self.runs if run.metrics.exists()]
        if not begun:
            return True
        try:
            picture = HTML(to_cell_html(read_run(begun[-1].folder)))
            if self.handle is None:
                self.handle = display(picture, display_id=True)
            else:
                self.handle.update(picture)
        except Exception as error:
            print(f"note      no picture of the progress: {error!r}")
            return False
        return True


def find_cell(runs: Sequence[Run]) -> Cell | None:
    """The output of the cell that calls; None elsewhere than in a notebook."""
    if "IPython" not in sys.modules:
        return None
    shell = sys.modules["IPython"].get_ipython()
    # A terminal has no kernel, and shows lines only.
    return Cell(runs) if hasattr(shell, "kernel") else None
