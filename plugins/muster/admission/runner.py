"""Runs a scheduler's commands: on this machine, or over SSH on a login node, each within a deadline."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
from collections.abc import Sequence

from muster.errors import BadScheduler, MusterError, SchedulerDown
from muster.remote.connection import ssh

OUTPUT_BYTES_MAX = 512 * 1024 * 1024
"""Slurm describes a node in 1.2 KB, and a fleet may have 100,000."""

KILLED_S = 1.0
"""How long (s) to wait for a command that was killed."""

KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "SLURM_CONF")
"""Variables that a command inherits, in addition to its ``variables``. sbatch passes the whole environment to the job
on the tested node, so no secret of the controller may be in it; SQUEUE_* and SLURM_CLUSTERS would change what is
read."""

_ALONE = " ".join(["exec env -i", *(f'${{{name}+"{name}=${name}"}}' for name in KEPT), '"$@"'])


@dataclasses.dataclass(frozen=True)
class Runner:
    """``variables``: set for every command. ``login``: the login node, None for this machine. ``shown``: how many words
    of a command an error names; the others may be secrets.
    """

    timeout_s: float
    variables: tuple[tuple[str, str], ...] = ()
    login: ssh.NodeAddress | None = None
    shown: int = 3

    def run(self, *command: str) -> bytes:
        """Returns the standard output. Raises SchedulerDown on failure or timeout, BadScheduler without it."""
        name = " ".join(command[: self.shown])
        try:
            done = self._over_ssh(command, self.login) if self.login else self._here(command)
        except SchedulerDown:
            raise
        except MusterError as error:
            raise SchedulerDown(str(error)) from error
        except subprocess.TimeoutExpired:
            raise SchedulerDown(f"{name!r} did not end within {self.timeout_s:g} s") from None
        except FileNotFoundError:
            raise BadScheduler(
                f"there is no {command[0]} on this machine: install the scheduler's commands, or name a login node"
            ) from None
        except OSError as error:
            raise SchedulerDown(f"{name!r} cannot be run: {error.strerror}") from None
        if done.rc != 0 or done.truncated:
            raise SchedulerDown(f"{name!r} failed: {done.complaint}")
        return done.out

    def _here(self, command: Sequence[str]) -> ssh.Completed:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        # Not subprocess.run, which waits forever for a command that it may not kill: sudo's belongs to root.
        process = subprocess.Popen(
            command, env=kept | dict(self.variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            out, err = process.communicate(timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(PermissionError):
                process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILLED_S)
            raise
        finally:
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        return ssh.Completed(process.returncode, out, err)

    def _over_ssh(self, command: Sequence[str], login: ssh.NodeAddress) -> ssh.Completed:
        from muster.integration import logins

        client = logins.connect(login, timeout=self.timeout_s, attempts=1)
        try:
            words = ["sh", "-c", _ALONE, "sh", *(f"{name}={value}" for name, value in self.variables), *command]
            return ssh.run(client, words, timeout=self.timeout_s, max_bytes=OUTPUT_BYTES_MAX)
        finally:
            client.close()
