"""The HTTP client: a server's store behind the same contract as a store on disk."""
