"""Encodings shared by server and clients, as pure functions: frames, JSON, problem details."""
