"""Other tools' configurations -> experiments of ours, and what becomes of each of their keys.

    foreign_file      a YAML, JSON or shell file -> its keys, and the dialect that it is in
                      (foreign_config; of scripts training_command, shell_lines)
    draft             the experiment as it grows, with a note on each key
    follow            the rows of a dialect's table (row_functions: what no row can describe)
    device_strategy   over how many devices, and how -> words to type
    dataset_entries, reward_entries    datasets and rewards of any tool
    hydra_words       overrides and nested YAML of tools that read them with Hydra
    axolotl, llama_factory, llama_factory_v1, swift, trl    the rest, one reader a tool
    verl, verl_sft    the same, with verl_run, verl_loss and verl_rewards
    translate         all of it in order

A dialect is one table in ``config/dialects/``, which the check of keys reads too; ``shared.yaml``
there explains each section, and has an example with all that one must have. Beside the table: its
name in the help of ``import``, 80 letters wide, and a file of the tool in tests/importers/, whose
name begins with that of the dialect. A reader is for datasets that are more than paths. Keys of
many tools are rows of ``shared.yaml``.

Nothing is trained or loaded here, and no file is written.
"""
