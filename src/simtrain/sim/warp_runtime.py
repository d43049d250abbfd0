"""Warp beside PyTorch: quiet, and on PyTorch's streams."""

import torch
import warp as wp

_streams: dict[tuple[torch.device, int], wp.Stream] = {}


def init_warp() -> None:
    """Initialize Warp, which would announce itself and every kernel on standard output."""
    wp.config.log_level = max(wp.config.log_level, wp.LOG_WARNING)
    wp.init()


def current_stream(device: torch.device) -> wp.Stream:
    """PyTorch's current stream on a CUDA device.

    One object a stream, for good: at the end of any, Warp forgets the stream for all others too.
    There are few, for PyTorch takes its streams from a pool.
    """
    stream = torch.cuda.current_stream(device)
    key = (device, stream.cuda_stream)
    if key not in _streams:
        _streams[key] = wp.stream_from_torch(stream)
    return _streams[key]
