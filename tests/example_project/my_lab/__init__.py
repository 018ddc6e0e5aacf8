"""One part of each kind, to copy and change. Nothing is registered.

A YAML names a function or class.

The task is the toy one, to sort four digits. What a part may ask for by name is said in each file;
every other argument is a key of the YAML. These packages run only where the command line says
``allow=[my_lab]``.
"""
