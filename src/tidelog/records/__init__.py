"""Record batches: build, check, read, compress. No sockets, files or clocks."""
