"""The reader of YAML, apart from what a command without any YAML imports."""

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the fast one, where it was built
