"""The contract: what can be asked of a store, declared once for every kind of store and every way to reach one."""
