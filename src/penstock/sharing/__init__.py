"""One folder, many processes: the first opener owns the store and serves the others over a Unix socket."""
