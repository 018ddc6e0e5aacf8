"""The verbs, one file each; each has one public function of the file's name. Only here do the parts meet."""

from pathlib import Path

VERBS = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
