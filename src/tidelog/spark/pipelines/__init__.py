"""The pipelines: each is one module, declared as source, steps and sinks."""
