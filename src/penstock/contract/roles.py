"""What a token allows. A route names the roles of which one suffices."""

READ, WRITE, CONSUME, ADMIN = 1, 2, 4, 8
ROLES = {"read": READ, "write": WRITE, "consume": CONSUME, "admin": ADMIN}
ANYONE = 0  # also without a token
ALL = ANY_ROLE = READ | WRITE | CONSUME | ADMIN
_EVERYTHING = ADMIN  # includes the others, as who may delete a queue has no need to be kept from reading it


def allows(held: int, needed: int) -> bool:
    """Whether one of the needed roles is held."""
    return not needed or bool(held & (needed | _EVERYTHING))


def names(roles: int) -> list[str]:
    """The roles by their names."""
    return [name for name, role in ROLES.items() if roles & role]
