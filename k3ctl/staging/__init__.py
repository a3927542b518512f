"""Weights onto disks: manifest, partition, verification, progress."""
