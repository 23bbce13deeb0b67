"""The command line: one module per tool, loaded when it is called."""
