"""The grammars of `tidelog consume` and `tidelog produce`: offsets, format strings, JSON, schema files."""
