"""Actions of people and shells on the files of a store, one per function."""

import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from penstock import PenstockError
from tests.person.world import QUEUE, World, before, is_plain

Deed = Callable[[World], None]


# To any store


def lets_time_pass(world: World) -> None:
    seconds = world.random.choice([0.001, 1, 4, 35])
    world.note(f"{seconds} s pass")
    world.clock.advance(seconds)


def sets_the_clock(world: World) -> None:
    """Set the clock of all processes ahead or back by minutes."""
    seconds = world.random.choice([-600, -20, 20, 600])
    if not -2_000 < world.time.now() - world.clock.now() - seconds * 1000 < 2_000_000:
        return
    world.note(f"the clock is set by {seconds} s")
    world.clock.jump(seconds)
    _everyone_looks(world)


def _everyone_looks(world: World) -> None:
    """Have every process read the clock."""
    world.time.now()
    for client in world.clients:
        with suppress(PenstockError):
            client.queue(QUEUE).counts()


def has_a_clock_that_glitches(world: World) -> None:
    world.note("the clock is a day ahead for one operation")
    world.clock.jump(86_400)
    world.time.now()
    world.step()
    world.clock.jump(-86_400)
    _everyone_looks(world)


def restarts_a_program(world: World) -> None:
    world.note("programs restart")
    world.reopen()


def kills_a_program(world: World) -> None:
    change = world.random.randint(1, 60)
    world.note(f"kill -9 before change {change}")
    world.child(world.kill_at(change), 20)
    world.check()


def has_a_disk_that_fails(world: World) -> None:
    change = world.random.randint(1, 60)
    world.note(f"EIO at change {change}")
    world.child(world.fail_at(change), 20)
    world.check()


def has_a_disk_that_cannot_be_read(world: World) -> None:
    look = world.random.randint(1, 200)
    world.note(f"EIO at look {look}")
    world.child(world.fail_at(look, looking=True), 20)
    world.check()


def has_a_full_disk(world: World) -> None:
    change = world.random.randint(1, 60)
    world.note(f"no space from change {change} on")
    world.child(world.full_from(change), 20)
    world.check()


def limits_the_size_of_files(world: World) -> None:
    size = world.random.choice([0, 100, 1_000, 4_000])
    world.note(f"no file grows beyond {size} bytes")
    world.child(world.full_at(size), 10)
    world.check()


def makes_strays(world: World) -> None:
    name = world.random.choice(["notes.txt", ".hidden", "x.tq.swp", "README"])
    command = world.random.choice(["echo stray > {name}", "mkdir -p {name}.d", "ln -sf /nowhere {name}.link"])
    world.shell(command, name=name)


# To a text store


def _file(world: World) -> Path:
    return world.folder / f"{QUEUE}.tq"


def appends_a_line(world: World) -> None:
    payload = world.payload()
    world.writes(payload)
    world.shell("echo '-{payload}' >> {file}", payload=payload.decode(), file=_file(world))


def appends_while_a_program_works(world: World) -> None:
    """The shell's appends come between any two steps of another process."""
    payload = world.payload()
    world.writes(payload)
    change = world.random.randint(1, 40)
    line, file = f"-{payload.decode()}\n".encode(), str(_file(world))

    def append() -> None:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, line)
        os.close(descriptor)

    world.note(f"echo {line!r} >> before change {change}")
    world.child(lambda: before(change, append), 20)
    if line[1:] not in _file(world).read_bytes():
        append()  # it had fewer changes
    world.check()


def _comment_out(world: World, command: str) -> None:
    """Take out a message by making it a comment; nothing else moves."""
    waiting = [each for each in world.queue().messages() if re.fullmatch(rb"payload \d+", each.payload)]
    if not waiting:
        return
    message = world.random.choice(waiting)
    world.removes(message.id)
    world.removed.add(message.payload)
    world.shell(command, payload=message.payload.decode(), file=_file(world))


def edits_with_sed(world: World) -> None:
    _comment_out(world, "sed -i 's/^-{payload}$/#{payload}/' {file}")


def edits_with_vim(world: World) -> None:
    """A backup, a new file, a rename."""
    _comment_out(world, "cp {file} {file}~ && sed 's/^-{payload}$/#{payload}/' {file} > .new && mv .new {file}")


def edits_in_place(world: World) -> None:
    _comment_out(world, "sed 's/^-{payload}$/#{payload}/' {file} > .new && cat .new > {file} && rm .new")


def touches_the_file(world: World) -> None:
    world.shell("touch {file}", file=_file(world))


def moves_the_file_away_and_back(world: World) -> None:
    world.shell("mv {file} away", file=_file(world))
    world.step()
    world.shell("mv away {file}", file=_file(world))


def makes_strays_that_look_like_queues(world: World) -> None:
    name = world.random.choice(["a.tq", "b.tq"])
    with suppress(Exception):
        world.shell(world.random.choice(["mkdir {name}", "mkfifo {name}", "ln -s /nowhere {name}"]), name=name)


def removes_strays_that_look_like_queues(world: World) -> None:
    world.shell("rm -rf a.tq b.tq")


def links_the_file(world: World) -> None:
    """Under another name, in another folder, by which another program works."""
    command = world.random.choice(["ln -f {file} {other}", "ln -sf {file} {other}"])
    world.shell(command, file=_file(world), other=world.home / "linked.tq")
    world.child(lambda: None, 5, url=str(world.home / "linked.tq"), queue="linked")


def forbids_the_file(world: World) -> None:
    """A program of another user meets files that it may not open, or not write."""
    mode = world.random.choice(["000", "444"])
    world.shell("chmod a+rwX . * ; chmod {mode} {file}", mode=mode, file=_file(world))
    world.child(lambda: None, 3, nobody=True)
    world.shell("chmod 666 {file}", file=_file(world))


def forbids_the_folder(world: World) -> None:
    """A program of another user may write the files, but make none."""
    mode = world.random.choice(["555", "000"])
    world.shell("chmod a+rwX * ; chmod {mode} .", mode=mode)
    world.child(lambda: None, 3, nobody=True)
    world.shell("chmod 755 .")


# To a folder store


def _messages(world: World, folder: str) -> list[Path]:
    names = (world.folder / folder).iterdir()
    return sorted(path for path in names if re.fullmatch(r"(jobs:)?[0-9a-f-]{36}", path.name) and is_plain(path))


def drops_a_file(world: World) -> None:
    payload = world.payload()
    name = world.random.choice(["job", "Order", "x y"]) + payload.decode()[8:]
    world.writes(payload, name)
    command = "printf '%s' '{payload}' > '.{name}' && mv '.{name}' 'queues/jobs/{name}'"
    world.shell(command, payload=payload.decode(), name=name)


def removes_a_file(world: World) -> None:
    files = [*_messages(world, f"queues/{QUEUE}"), *_messages(world, "delay")]
    if files:
        path = world.random.choice(files)
        world.removes(path.name.rpartition(":")[2])
        with suppress(OSError):
            world.removed.add(path.read_bytes())
        world.shell("rm '{path}'", path=path)


def touches_a_file(world: World) -> None:
    if files := _messages(world, f"queues/{QUEUE}"):
        world.shell("touch '{path}'", path=world.random.choice(files))


def copies_a_file_elsewhere(world: World) -> None:
    if files := _messages(world, f"queues/{QUEUE}"):
        world.shell("cp -a '{path}' {home}/copy", path=world.random.choice(files), home=world.home)


def edits_a_file(world: World) -> None:
    """Under a new name: what was there is gone, and another message comes."""
    if files := _messages(world, f"queues/{QUEUE}"):
        path, payload = world.random.choice(files), world.payload()
        world.removes(path.name)
        world.removed.add(path.read_bytes())
        name = f"edited{payload.decode()[8:]}"
        world.writes(payload, name)
        command = "sed 's/.*/{payload}/' '{path}' > .new && rm '{path}' && mv .new 'queues/jobs/{name}'"
        world.shell(command, payload=payload.decode(), path=path, name=name)


def moves_the_queue_away_and_back(world: World) -> None:
    world.shell("mv queues/jobs away")
    world.put()
    world.shell("if [ -d queues/jobs ]; then mv away/* queues/jobs; rmdir away; else mv away queues/jobs; fi")


def keeps_a_copy_of_hard_links(world: World) -> None:
    """As backups do that share what has not changed; a program may die meanwhile."""
    world.shell("rm -rf {home}/snapshot; cp -al . {home}/snapshot", home=world.home)


def forbids_a_file(world: World) -> None:
    """A program of another user meets a message that it may not read, or not write."""
    if files := _messages(world, f"queues/{QUEUE}"):
        path = world.random.choice(files)
        mode = world.random.choice(["000", "444"])
        world.shell("chmod -R a+rwX . ; chmod {mode} '{path}'", mode=mode, path=path)
        world.child(lambda: None, 3, nobody=True)
        world.shell("find . -name '{name}' -exec chmod 666 {{}} +", name=f"*{path.name}*")


def leaves_strays_in_the_tree(world: World) -> None:
    place = world.random.choice(
        ["queues/jobs/", "queues/", "delay/jobs:", "failed/jobs:", "delay/", "new/", "done/"]
    )
    name = f"{place}stray{world.random.randint(0, 9)}"
    if world.random.random() < 0.2:
        with socket.socket(socket.AF_UNIX) as bound, suppress(OSError):
            bound.bind(str(world.folder / f"queues/jobs/socket{world.random.randint(0, 9)}"))
    elif place != "queues/jobs/":  # there a file is a message
        with suppress(Exception):
            world.shell(world.random.choice(["touch {name}", "mkdir {name}", "mkfifo {name}"]), name=name)
    else:
        with suppress(Exception):
            world.shell(
                world.random.choice(["mkdir {name}", "mkfifo {name}", "ln -s /etc/passwd {name}"]), name=name
            )


TO_ANY: tuple[Deed, ...] = (
    lets_time_pass, lets_time_pass, sets_the_clock, has_a_clock_that_glitches, restarts_a_program,
    kills_a_program, has_a_disk_that_fails, has_a_disk_that_cannot_be_read, has_a_full_disk,
    limits_the_size_of_files, makes_strays,
)  # fmt: skip
TO: dict[str, tuple[Deed, ...]] = {
    "text": (
        *TO_ANY, appends_a_line, appends_a_line, appends_while_a_program_works, edits_with_sed, edits_with_vim,
        edits_in_place, touches_the_file, moves_the_file_away_and_back, makes_strays_that_look_like_queues,
        removes_strays_that_look_like_queues, links_the_file, forbids_the_file, forbids_the_folder,
    ),
    "folder": (
        *TO_ANY, drops_a_file, drops_a_file, removes_a_file, edits_a_file, touches_a_file,
        copies_a_file_elsewhere, keeps_a_copy_of_hard_links, moves_the_queue_away_and_back, forbids_a_file,
        leaves_strays_in_the_tree,
    ),
}  # fmt: skip
