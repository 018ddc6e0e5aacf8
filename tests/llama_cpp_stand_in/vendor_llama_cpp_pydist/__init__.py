"""A stand-in for the package that holds llama.cpp's converter."""
