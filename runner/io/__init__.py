"""Files, secrets, the terminal and file types; needs the standard library alone."""
