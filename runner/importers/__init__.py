"""Other tools' configurations -> experiments of ours, and what becomes of each of their keys.

    foreign_file      a YAML, JSON or shell file, a Python script or a notebook -> its keys, and the
                      dialect that it is in (foreign_config; of shell scripts training_command,
                      shell_lines and hydra_words; of Python python_training and python_*)
    draft             the experiment as it grows, with a note on each key
    follow            the rows of a dialect's table (row_functions: what no row can describe)
    device_strategy   over how many devices, and how -> words to type
    dataset_entries, reward_entries    datasets and rewards of any tool
    axolotl, verl...  the rest, one reader a tool, in modules of their names
    translate         all of it in order
    experiment_content    the name and the file of the experiment

A dialect is one table in ``config/dialects/``, which the check of keys reads too; README.md here
explains its language, and ``shared.yaml`` there each section. Beside the table: its name in the
help of ``import``, 80 letters wide, and a file of the tool in tests/importers/, whose name begins
with that of the dialect. A reader is for datasets that are more than paths. Keys of many tools are
rows of ``shared.yaml``.

Nothing is trained or loaded here, and no file is written.
"""
