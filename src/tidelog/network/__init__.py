"""Sockets: frames in, frames and file slices out, limits on both, and the loop they live on."""
