"""Files with secrets: who else could know them, and the one that every user has."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from byteps.config import Config
from byteps.errors import InvalidArgumentError
from byteps.secret_file import folders_of_user, read_secret_file, secret_of_user

SECRET = "0123456789abcdef"
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ValueError, match="expected") as caught:
        read_secret_file(path)
    return str(caught.value)


def test_what_only_its_user_and_root_can_read_will_do(key: Path, tmp_path: Path) -> None:
    for mode in (0o600, 0o400, 0o700):
        key.chmod(mode)
        assert read_secret_file(key) == SECRET
    (tmp_path / "link").symlink_to(key)
    assert read_secret_file(tmp_path / "link") == SECRET


@pytest.mark.parametrize(
    ("mode", "who"),
    [
        (0o640, "group 0 can read it"),
        (0o660, "group 0 can read and change it"),
        (0o620, "group 0 can change it"),
        (0o604, "all other users can read it"),
        (0o644, "group 0 and all other users can read it"),
    ],
)
def test_what_others_can_read_or_change_will_not(key: Path, mode: int, who: str) -> None:
    key.chmod(mode)
    group = key.stat().st_gid
    expected = f"{who.replace('group 0', f'group {group}')} (user {os.geteuid()}, mode {mode:o}): expected chmod 600"
    assert expected in refusal(key)


@needs_root
def test_a_file_of_another_user_will_not(key: Path) -> None:
    os.chown(key, NOBODY, NOBODY)
    assert "it belongs to user 65534 (mode 600), who can read and change it: expected a file of user 0" in refusal(key)


def test_what_is_no_text_is_not_shown(key: Path) -> None:
    key.write_bytes(b"\xffsecret\xfe" * 4)
    assert "secret" not in refusal(key)
    key.write_text("")
    assert "expected text of 16 to 4096 bytes" in refusal(key)
    key.unlink()
    os.mkfifo(key, 0o600)
    assert "expected a regular file" in refusal(key)


MOUNTED = """
mount -t tmpfs none /mnt && cd /mnt && mkdir ..v1 && ln -s ..v1 ..data && ln -s ..data/key key
printf 0123456789abcdef >..v1/key && chown 0:1234 ..v1/key && chmod $1 ..v1/key || exit 9
[ $2 = rw ] || mount -o remount,ro /mnt || exit 9
exec "$4" -c "
import os; from byteps.secret_file import *
os.setgroups([1234]), os.setgid($3), os.setuid($3)
try: print(read_secret_file(Path('/mnt/key')))
except (OSError, ValueError) as error: print(error)"
"""


@needs_root
@pytest.mark.parametrize(
    ("mode", "how", "user", "says"),
    [
        ("0644", "ro", NOBODY, SECRET),  # Kubernetes' default
        ("0440", "ro", NOBODY, SECRET),  # defaultMode 0400 with fsGroup
        ("0400", "ro", NOBODY, "Permission denied"),
        ("0400", "rw", 0, SECRET),
        ("0644", "rw", NOBODY, "all other users can read it"),
        ("0440", "rw", NOBODY, "group 1234 can read it"),
    ],
)
def test_a_secret_that_is_mounted_into_a_container(mode: str, how: str, user: int, says: str) -> None:
    """Lays the secret out like kubelet: root's, behind links, on a read-only tmpfs."""
    command = ["unshare", "--mount", "sh", "-c", MOUNTED, "sh", mode, how, str(user), sys.executable]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert says in run.stdout, run


def test_a_user_has_one_secret_however_many_make_it_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "byteps"
    with multiprocessing.get_context("fork").Pool(8) as pool:
        found = pool.map(secret_of_user, [(str(folder),)] * 64, chunksize=1)
    assert len(set(found)) == 1
    assert len(found[0]) == 64
    assert [(path.name, path.stat().st_mode & 0o777) for path in folder.iterdir()] == [("secret", 0o600)]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_where_a_user_has_it() -> None:
    fallbacks = (f"/tmp/byteps-{os.geteuid()}", f"/dev/shm/byteps-{os.geteuid()}")
    assert folders_of_user({}) == fallbacks
    assert folders_of_user({"HOME": "/h/a"}) == ("/h/a/.local/state/byteps", *fallbacks)
    assert folders_of_user({"HOME": "/h/a", "XDG_STATE_HOME": "/s"}) == ("/s/byteps", *fallbacks)


def test_a_home_that_cannot_be_written_to(tmp_path: Path) -> None:
    fallback = str(tmp_path / "byteps-0")
    assert secret_of_user(("/proc/none/byteps", fallback)) == secret_of_user((fallback,))
    with pytest.raises(
        ValueError, match=r"no folder for this user's secret \(/proc/none/byteps: No such file"
    ) as caught:
        secret_of_user(("/proc/none/byteps", "/proc/version/byteps"))
    assert "BYTEPS_SECRET_FILE" in str(caught.value)


def test_what_is_there_already_needs_no_writing(tmp_path: Path) -> None:
    folder = tmp_path / "byteps"
    secret = secret_of_user((str(folder),))
    folder.chmod(0o500)
    assert secret_of_user((str(folder),)) == secret


@needs_root
def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    theirs, open_to_all, mine = (tmp_path / name for name in ("theirs", "open", "mine"))
    for folder in (theirs, open_to_all):
        secret_of_user((str(folder),))
    os.chown(theirs, NOBODY, NOBODY)
    open_to_all.chmod(0o777)
    (tmp_path / "link").symlink_to(mine)
    with pytest.raises(ValueError, match="it belongs to user 65534, not to user 0") as caught:
        secret_of_user((str(theirs), str(open_to_all), str(tmp_path / "link")))
    assert "others can write to it (mode 777)" in str(caught.value)
    secret_of_user((str(theirs), str(mine)))
    assert (mine / "secret").exists()


def test_a_users_secret_that_others_can_read_is_no_secret(tmp_path: Path) -> None:
    secret_of_user((str(tmp_path),))
    (tmp_path / "secret").chmod(0o644)
    with pytest.raises(ValueError, match=f"this user's secret, {tmp_path}/secret: .* or remove the file"):
        secret_of_user((str(tmp_path),))


def test_a_job_without_a_secret_gets_the_users_for_this_machine(tmp_path: Path) -> None:
    here = {"XDG_STATE_HOME": str(tmp_path), "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    environ = here | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    config = Config.parse(environ)
    assert not (tmp_path / "byteps").exists()  # reading settings creates nothing
    node = config.to_node_config()
    assert node.loopback_only
    assert node.secret.decode() == (tmp_path / "byteps" / "secret").read_text().strip()
    own = Config.parse({**environ, "BYTEPS_SECRET": SECRET}).to_node_config()
    assert (own.secret, own.loopback_only) == (SECRET.encode(), False)
    for shown in (repr(config), repr(node)):
        assert node.secret.decode() not in shown
    (tmp_path / "byteps" / "secret").chmod(0o644)
    with pytest.raises(InvalidArgumentError, match="this user's secret"):
        config.to_node_config()
