"""One part of each kind, to copy and change: nothing is registered, a YAML names a function or class and that is all.

The task is the toy one, to sort four digits. What a part may ask for by name is said in each file;
every other argument is a key of the YAML. These packages run only where the command line says
``allow=[my_lab]``.
"""
