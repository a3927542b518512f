"""k3ctl: from bare GPU servers to a served, proven Kimi-K3 endpoint."""

__version__ = "0.1.0"
