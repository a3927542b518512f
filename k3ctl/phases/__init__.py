"""The phases: one file each, and the ordered list of every command."""
