"""Settings of a command from a TOML file, for what neither a flag nor the environment says."""

import tomllib
from typing import Any

import click

_NOT_THERE = {"config", "as_json"}


def config_option(command: Any) -> Any:
    """The --config option. It is read before all others, which take their defaults from it."""
    return click.option(
        "--config",
        envvar="PENSTOCK_CONFIG",
        show_envvar=True,
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_read,
        help="A TOML file with any of these settings; flags and environment come first.",
    )(command)


def _read(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    if path is None:
        return
    try:
        with open(path, "rb") as file:
            given = tomllib.load(file)
    except OSError as error:
        raise click.BadParameter(f"cannot read {path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise click.BadParameter(f"{path} is no TOML: {error}") from None
    table = given.get(ctx.info_name or "", {})
    known = sorted(each.name for each in ctx.command.params if each.name and each.name not in _NOT_THERE)
    strange = [name for name in given if name not in ("store", ctx.info_name)]
    if strange or not isinstance(table, dict):
        raise click.BadParameter(f"{path} has store = URL and a table [{ctx.info_name}], but no {strange or ''}")
    if unknown := sorted(table.keys() - set(known)):
        raise click.BadParameter(f"{path}: there is no setting {unknown[0]!r}; give {', '.join(known)}")
    repeatable = {each.name for each in ctx.command.params if getattr(each, "multiple", False)}
    ctx.default_map = {
        name: [value] if name in repeatable and isinstance(value, str) else value for name, value in table.items()
    }
    root = ctx.find_root()
    source = root.get_parameter_source("store")
    if "store" in given and source in (None, click.core.ParameterSource.DEFAULT):
        root.params["store"] = given["store"]
