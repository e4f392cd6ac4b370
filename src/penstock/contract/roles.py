"""Roles of tokens. A route names roles, of which a token needs one."""

READ, WRITE, CONSUME, ADMIN = 1, 2, 4, 8
ROLES = {"read": READ, "write": WRITE, "consume": CONSUME, "admin": ADMIN}
ANYONE = 0  # no token needed
ALL = ANY_ROLE = READ | WRITE | CONSUME | ADMIN


def allows(held: int, needed: int) -> bool:
    """Whether one of the needed roles is held. ADMIN includes the others."""
    return not needed or bool(held & (needed | ADMIN))


def names(roles: int) -> list[str]:
    """The roles by their names."""
    return [name for name, role in ROLES.items() if roles & role]
