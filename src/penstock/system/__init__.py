"""The doors to the world: time, disk, threads, processes."""
