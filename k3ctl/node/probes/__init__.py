"""What a host says about itself: one collector a file, each with `collect(request) -> dict`. Nothing here writes."""
