"""Simulated hardware: a stand-in NVML library and sysfs trees, both made from a machine description."""
