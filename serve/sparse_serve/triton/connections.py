"""The sockets of a server's processes: which ports they listen at, and how connections that idle are ended.

Once told to end, Triton takes no new HTTP connection and waits for those there are: where a client keeps an
idle one alive, as most do, for its whole exit time-out. Here the receiving end of each is shut from outside:
the server reads the end of an idle one at once, and of another after it has answered what it is asked there.
"""

import ctypes
import logging
import os
import socket
from collections.abc import Iterable
from contextlib import closing

import psutil

_PIDFD_GETFD = 438  # on every architecture; Python has no function for it
_logger = logging.getLogger(__name__)


def listens(pids: Iterable[int], port: int) -> bool:
    """Tell whether one of these processes listens at `port`; true too where the kernel does not say."""
    try:
        sockets = [each for pid in pids for each in psutil.Process(pid).net_connections("tcp")]
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in sockets)


def end_receiving(pids: Iterable[int], port: int) -> None:
    """Have the connections to `port` that these processes hold receive nothing more.

    Does nothing where the kernel does not let this process at them.
    """
    for pid in pids:
        try:
            held = psutil.Process(pid).net_connections("tcp")
            descriptors = [
                each.fd
                for each in held
                if each.status == psutil.CONN_ESTABLISHED and each.laddr and each.laddr.port == port
            ]
            for descriptor in descriptors:
                with closing(_copy_of(pid, descriptor)) as connection:
                    connection.shutdown(socket.SHUT_RD)
        except (OSError, psutil.Error) as error:  # gone meanwhile, or not ours to touch
            _logger.debug("connections of process %d: %s", pid, error)


def _copy_of(pid: int, descriptor: int) -> socket.socket:
    """Return a socket that another process has open."""
    process = os.pidfd_open(pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        copy = libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
    finally:
        os.close(process)
    if copy < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return socket.socket(fileno=copy)
