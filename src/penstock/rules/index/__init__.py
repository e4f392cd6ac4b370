"""The index of a queue in memory: small columns, lanes and heaps of numbers. It knows no rules and no disk."""
