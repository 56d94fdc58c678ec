"""Checks and reads files with secrets, and creates each user's own secret for jobs of one machine.

Only the user and root may be able to read or change such a file. An exception is a secret that
Kubernetes, Docker or Podman mounts into a container, which every process in the container may read:
a file of root on a tmpfs that is mounted read-only.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

MIN_SECRET_CHARS = 16
_MAX_SECRET_BYTES = 4096
_NAME = "secret"
_ROOT = 0
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FALLBACKS = ("/tmp", "/dev/shm")  # used if the home folder is not writable


def read_secret_file(path: Path) -> str:
    """Returns the stripped text of a file that other users can neither read nor change.

    Raises:
        OSError: the file cannot be read.
        ValueError: its owner, mode or content is not acceptable; the message says what was
            expected.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # also for pipes
    try:
        _check(os.fstat(descriptor), is_mounted=_is_mounted_secret(descriptor))
        return _text(os.read(descriptor, _MAX_SECRET_BYTES + 1))
    finally:
        os.close(descriptor)


def folders_of_user(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the possible folders of this user's secret, best first.

    They are the same in all processes of a job of one machine.
    """
    state = environ.get("XDG_STATE_HOME", "")
    home = environ.get("HOME", "")
    found = [f"{state}/byteps"] if state.startswith("/") else [f"{home}/.local/state/byteps"] if home else []
    return (*found, *(f"{folder}/byteps-{os.geteuid()}" for folder in _FALLBACKS))


def secret_of_user(folders: tuple[str, ...]) -> str:
    """Returns the secret in the first usable folder. Creates it at the first use.

    Several processes may call this at the same time.

    Raises:
        ValueError: no folder is usable, or others can read the file; the message says what to do.
    """
    reasons = []
    for folder in folders:
        try:
            return _secret_in(folder)
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
    raise ValueError(
        f"no folder for this user's secret ({'; '.join(reasons)}): expected a writable home folder, "
        "BYTEPS_SECRET_FILE or BYTEPS_SECRET"
    )


def _check(info: os.stat_result, *, is_mounted: bool) -> None:
    user, mode = os.geteuid(), stat.S_IMODE(info.st_mode)
    if not stat.S_ISREG(info.st_mode):
        raise ValueError("expected a regular file")
    if info.st_uid not in {user, _ROOT}:
        raise ValueError(
            f"it belongs to user {info.st_uid} (mode {mode:03o}), who can read and change it: expected a file of user "
            f"{user}, who runs this process, or of root: chown {user}"
        )
    if is_mounted and info.st_uid == _ROOT:
        return
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        who = [f"group {info.st_gid}"] * bool(mode & stat.S_IRWXG) + ["all other users"] * bool(mode & stat.S_IRWXO)
        what = " and ".join(word for word, bits in (("read", 0o044), ("change", 0o022), ("run", 0o011)) if mode & bits)
        raise ValueError(
            f"{' and '.join(who)} can {what} it (user {info.st_uid}, mode {mode:03o}): expected chmod 600. Only a "
            "secret that is mounted into a container (a file of root on a read-only tmpfs) may have another mode"
        )


def _text(content: bytes) -> str:
    if not content.strip() or len(content) > _MAX_SECRET_BYTES:
        raise ValueError(f"expected text of {MIN_SECRET_CHARS} to {_MAX_SECRET_BYTES} bytes")
    try:
        return content.decode().strip()
    except UnicodeDecodeError:  # its message would show the content
        raise ValueError("expected text (UTF-8), such as `openssl rand -hex 32` writes") from None


def _is_mounted_secret(descriptor: int) -> bool:
    """Whether the file is on a read-only tmpfs, as secrets of Kubernetes, Docker and Podman are."""
    if not os.fstatvfs(descriptor).f_flag & os.ST_RDONLY:
        return False
    device = os.fstat(descriptor).st_dev
    return _file_system(f"{os.major(device)}:{os.minor(device)}") == "tmpfs"


def _file_system(device: str) -> str:
    with suppress(OSError), Path("/proc/self/mountinfo").open(encoding="utf-8", errors="replace") as mounts:
        for line in mounts:  # id, parent, major:minor, root, ..., "-", type, ...
            fields = line.split()
            if fields[2] == device:
                return fields[fields.index("-") + 1]
    return ""


def _secret_in(path: str) -> str:
    with _private_folder(path) as folder:
        if not _exists(folder):
            _make(folder)
        descriptor = os.open(_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
        try:
            _check(os.fstat(descriptor), is_mounted=False)
            return _text(os.read(descriptor, _MAX_SECRET_BYTES + 1))
        except ValueError as error:
            raise ValueError(
                f"this user's secret, {path}/{_NAME}: {error}; or remove the file, and byteps creates a new one"
            ) from None
        finally:
            os.close(descriptor)


@contextmanager
def _private_folder(path: str) -> Iterator[int]:
    """Yields a descriptor of the folder, which is created if necessary.

    Raises:
        OSError: the folder belongs to another user, or others can write to it.
    """
    try:
        folder = os.open(path, _FOLDER_FLAGS)
    except FileNotFoundError:
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            Path(path).mkdir(0o700)
        folder = os.open(path, _FOLDER_FLAGS)
    try:
        info = os.fstat(folder)
        if info.st_uid != os.geteuid():
            raise OSError(errno.EPERM, f"it belongs to user {info.st_uid}, not to user {os.geteuid()}")
        if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(errno.EPERM, f"others can write to it (mode {stat.S_IMODE(info.st_mode):03o})")
        yield folder
    finally:
        os.close(folder)


def _exists(folder: int) -> bool:
    try:
        os.stat(_NAME, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _make(folder: int) -> None:
    """Creates the file atomically. If several processes do this at once, one of them succeeds."""
    draft = f".{_NAME}.{os.getpid()}.{secrets.token_hex(8)}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_hex(32).encode() + b"\n")
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):
            os.link(draft, _NAME, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.unlink(draft, dir_fd=folder)
