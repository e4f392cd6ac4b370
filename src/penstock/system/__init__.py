"""Access to the operating system: time, disk, threads, processes. Tests replace each with a simulated twin."""
