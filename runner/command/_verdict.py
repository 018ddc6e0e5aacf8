"""The verdict on a run that was trained again: equal to the bit, close enough, or different."""

from collections.abc import Sequence
from typing import Any

from runner.config.composition import differences
from runner.errors import Fault, SickRun
from runner.io.files import write_json
from runner.report.compare import deviations
from runner.run.record import RunRecord
from runner.schema.literal import number


def judge_reproduction(
    run: RunRecord, again: RunRecord, unmatched: Sequence[str], tolerance: float = 0.0
) -> str:
    """The verdict for the terminal, which ``reproduction.json`` of the new run keeps, too.

    ``unmatched`` are the circumstances that are others. Raises SickRun where the two runs are not
    equal enough.
    """
    found = deviations(run, again)
    sizes = [deviation.size for deviation in found if deviation.what != "model"]
    largest = max((size for size in sizes if size is not None), default=0.0)
    is_close = tolerance > 0 and None not in sizes and largest <= tolerance
    # Only a started run knows its hardware.
    old_hardware = run.manifest.get("hardware") or {}
    new_hardware = again.manifest.get("hardware") or {}
    unmatched = list(unmatched)
    for key, old, new in differences(old_hardware, new_hardware):
        unmatched.append(f"{key}: {old}, here {new}")
    verdict: dict[str, Any] = {
        "of": str(run),
        "equal": not found,
        "within_tolerance": not found or is_close,
        "tolerance": tolerance,
        "differences": len(found),
        "first": str(found[0]) if found else None,
        "largest": largest,
        "unmatched": unmatched,
    }
    write_json(again.folder / "reproduction.json", verdict)
    if not found:
        return f"bit-equal {len(run.lines)} logged steps, {len(run.after)} scores and the weights"
    percent = number(100 * largest, 2)
    if is_close:
        return f"close     nothing is more than {percent} % apart; the first: {found[0]}"
    count = "1 difference"
    if len(found) > 1:
        count = f"{len(found)} differences, by up to {percent} %"
    reason = f", but these differ: {'; '.join(unmatched)}" if unmatched else ""
    fix = "python -m runner diff"
    if largest:
        fix = f"tolerance={number(largest * 1.01, 2)}, if that much may differ"
    raise SickRun(
        Fault(
            where=str(again),
            found=f"{count}; the first in {found[0]}",
            expected=f"the same to the bit{reason}",
            fix=fix,
        )
    )
