"""Record batches: built, checked, read, compressed. Bytes in, values out; no sockets, files, clocks."""
