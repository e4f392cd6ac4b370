"""Folders that another user has prepared: opening one deletes, overwrites and copies nothing outside of it."""

import os
from pathlib import Path

import pytest

import penstock
from penstock.stores.journal.catalog import Catalog
from penstock.stores.journal.format import AddX, encode
from penstock.system import socket_path as place
from penstock.system.files import SystemDisk

SECRET = b"\tthe secret of another file\n"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    path = outside / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture(params=["journal", "slate"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    made = f"{request.param}:{tmp_path / 'store'}"
    with penstock.open(made) as store:
        store.create("jobs").put(b"ours")
    return made


def outside_of(secret: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in secret.parent.iterdir()}


def copies_of(folder: Path) -> list[Path]:
    files = [each for each in folder.rglob("*") if each.is_file() and not each.is_symlink()]
    return [each for each in files if SECRET in each.read_bytes()]


def open_and_work(url: str) -> None:
    try:
        with penstock.open(url) as store:
            store.queue("jobs").put(b"more")
            store.queue("jobs").ack(*store.queue("jobs").claim(5))
    except penstock.PenstockError:
        pass  # refused is as good


@pytest.mark.parametrize(
    "name",
    [
        "lock", "lock.new", "synced", "synced.new", "clean", "clean.new", "store", "store.new", "adopting",
        "ballast", "queues/jobs", "queues/jobs.new", "index/jobs", "index/jobs.new", "share/path",
        "share/path.new",
        "share/socket", "quarantine/x",
    ],
)  # fmt: skip
def test_a_link_in_the_subfolder_leads_nowhere(url: str, name: str, tmp_path: Path, secret: Path) -> None:
    path = tmp_path / "store" / ".penstock" / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(secret)
    for _ in range(2):
        open_and_work(url)
    assert outside_of(secret) == {"secret": SECRET}
    assert secret.stat().st_mode & 0o777 == 0o600
    assert copies_of(tmp_path / "store") == []


@pytest.mark.parametrize(
    "name", ["", "queues", "index", "pins", "pins/1-2", "pins/1-2/3", "staged", "staged/1-2.3", "share", "loads"]
)
def test_a_link_to_a_folder_leads_nowhere(url: str, name: str, tmp_path: Path, secret: Path) -> None:
    path = tmp_path / "store" / ".penstock" / name
    path.parent.mkdir(exist_ok=True, parents=True)
    if path.exists():
        path.rename(tmp_path / "away")
    path.symlink_to(secret.parent)
    open_and_work(url)
    assert outside_of(secret) == {"secret": SECRET}
    assert copies_of(tmp_path / "store") == []


@pytest.mark.parametrize("name", ["jobs", "jobs.5", "jobs.5.pack", "jobs~~5", "other", "default"])
def test_a_journal_that_is_a_link_leads_nowhere(name: str, tmp_path: Path, secret: Path) -> None:
    with penstock.open(tmp_path / "store") as store:
        store.create("jobs").put(b"ours")
    path = tmp_path / "store" / name
    path.unlink(missing_ok=True)
    path.symlink_to(secret)
    for content in (SECRET, encode(AddX(1_700_000_000_000, 0, b"item")) + SECRET):
        secret.write_bytes(content)
        open_and_work(str(tmp_path / "store"))
        assert outside_of(secret) == {"secret": content}
        assert copies_of(tmp_path / "store") == []


def test_a_path_to_a_socket_that_another_has_written_is_not_followed(
    url: str, tmp_path: Path, secret: Path
) -> None:
    share = tmp_path / "store" / ".penstock" / "share"
    share.mkdir(exist_ok=True)
    empty = secret.parent / "empty"
    for elsewhere in (secret, empty / "socket"):
        empty.mkdir(exist_ok=True)
        (share / "path").write_bytes(os.fsencode(elsewhere))
        open_and_work(url)
        assert secret.read_bytes() == SECRET
        assert empty.is_dir()
        assert not (share / "path").exists()


def test_a_socket_elsewhere_is_found_and_removed(tmp_path: Path) -> None:
    share = str(tmp_path / ("x" * 100) / "share")
    os.makedirs(share)
    with place.bind(share):
        path = place.find(share)
        assert os.path.dirname(path) != share
        with place.connect(share, 10):
            pass
        place.remove(share)
    assert not os.path.exists(os.path.dirname(path))
    assert os.listdir(share) == []


def test_what_goes_to_quarantine_is_as_secret_as_before(tmp_path: Path) -> None:
    path = tmp_path / "q"
    path.write_bytes(encode(AddX(1_700_000_000_000, 0, b"item")) + b"\xff secret")
    path.chmod(0o600)
    with penstock.open(tmp_path) as store:
        assert len(store.queue("q")) == 1
    [kept] = (tmp_path / ".penstock" / "quarantine").iterdir()
    assert kept.read_bytes() == b"\xff secret"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert {each.stat().st_mode & 0o777 for each in tmp_path.glob("q*")} == {0o600}


def test_packing_and_rotation_make_files_that_are_as_secret_as_before(tmp_path: Path) -> None:
    from penstock.stores.journal.store import open_journal

    backend = open_journal(tmp_path, segment_size=1_000)
    queue = penstock.Store("", backend).create("jobs")
    queue.put(b"secret")
    (tmp_path / "jobs").chmod(0o600)
    queue.put_many([b"x" * 500] * 3)
    queue.put(b"next")
    backend.pack("jobs")
    queue.put(b"last")
    backend.close()
    assert {each.stat().st_mode & 0o777 for each in tmp_path.glob("jobs*")} == {0o600}


def test_who_has_a_store_open_is_not_read_through_a_link(tmp_path: Path, secret: Path) -> None:
    from penstock.sharing.ownership import holder

    with penstock.open(tmp_path / "store"):
        pass
    lock = tmp_path / "store" / ".penstock" / "lock"
    lock.unlink()
    lock.symlink_to(secret)
    assert holder(str(tmp_path / "store")) == "another process"
    with pytest.raises(penstock.StoreUnavailable, match="symbolic link"):
        Catalog(str(tmp_path / "store"), SystemDisk()).open()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link for another user")
@pytest.mark.parametrize("whole", [True, False], ids=["text:DIR", "NAME.tq"])
def test_a_text_file_that_is_a_link_of_another_user_leads_nowhere(
    tmp_path: Path, secret: Path, whole: bool
) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    link = folder / "jobs.tq"
    for target in (secret, secret.parent / "new"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        os.lchown(link, 12_345, -1)
        open_and_work(f"text:{folder}" if whole else str(link))
        assert outside_of(secret) == {"secret": SECRET}
        assert os.listxattr(secret) == []
    with pytest.raises(penstock.StoreUnavailable, match="symbolic link"):
        penstock.open(link)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link for another user")
@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_a_text_file_that_is_a_link_to_a_file_of_the_same_user_is_followed(tmp_path: Path, whose: str) -> None:
    target, link = tmp_path / "target", tmp_path / "jobs.tq"
    target.write_text("-ours\n")
    link.symlink_to(target)
    if whose == "theirs":
        os.chown(target, 12_345, -1)
        os.lchown(link, 12_345, -1)
    with penstock.open(f"text:{tmp_path}") as store:
        assert [each.payload for each in store.queue("jobs").claim(5)] == [b"ours"]


def test_links_that_are_put_into_a_slate_store_at_work_are_not_followed(tmp_path: Path, secret: Path) -> None:
    with penstock.open(f"slate:{tmp_path / 'store'}") as store:
        (tmp_path / "store" / ".penstock" / "synced.new").symlink_to(secret)
        store.create("jobs").put(b"ours")
    assert outside_of(secret) == {"secret": SECRET}
    (tmp_path / "store" / ".penstock" / "synced.new").unlink(missing_ok=True)
    with penstock.open(f"slate:{tmp_path / 'store'}") as store:
        assert len(store.queue("jobs")) == 1
