"""Other tools' configurations -> experiments of ours, and what becomes of each of their keys.

    read         a YAML, JSON or shell file -> its keys, and the dialect that it is in
    draft        the experiment as it grows: each key, followed by its row, with a note
    strategy     over how many devices, and how -> words to type
    readers      all of it in order; datasets, and the little else that no table can say of a dialect

A dialect is one table in ``config/dialects/``, which the check of keys reads too; ``shared.yaml``
there explains each section, and has an example with all that one must have. Beside the table: its
name in the help of ``import``, 80 letters wide, and a file of the tool in tests/importers/, whose
name begins with that of the dialect. A function in ``readers`` is for datasets that are more than
paths. Keys of many tools are rows of ``shared.yaml``.

Nothing is trained or loaded here, and no file is written.
"""
