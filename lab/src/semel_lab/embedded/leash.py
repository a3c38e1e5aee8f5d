"""Runs a command that dies with the process that started it, even if that one is SIGKILLed.

Called as a script: ``python -I -S leash.py PARENT SIGNAL USER COMMAND...``. It becomes the
command (exec), so the process id stays. PARENT 0 means no leash; USER "" means no change of user.

A script and not a ``preexec_fn``: that would run Python between fork and exec in a process full
of librdkafka's threads. It imports nothing of semel's, so it starts in some 20 ms.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, death_signal: int, user: str, command: list[str]) -> None:
    """Switch to the user, tie this process to its parent, and become the command."""
    if user:
        import pwd

        account = pwd.getpwnam(user)
        os.setgroups([])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)  # before the leash: a change of user would undo it
    if parent:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        if os.getppid() != parent:  # it died before the leash was on
            sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
