"""What is deployed: an entry, its limits, and where it is to be reached. Targets make files of it."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from sparse_serve.deploy.limits import Limits
from sparse_serve.errors import SparseServeError
from sparse_serve.repository.agreement import entry_faults
from sparse_serve.repository.check import Level, label_faults, require_no_error
from sparse_serve.repository.entries import Entry


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """An entry as it is to be served.

    Attributes:
        image: of Triton with the op library, as docker/ builds it.
        host: address that both protocols are published on.
        certificate: PEM file with certificate and key; None for no TLS.
    """

    entry: Entry
    limits: Limits
    image: str
    host: str
    http_port: int
    grpc_port: int
    certificate: Path | None = None


def require_sound(entry: Entry) -> None:
    """Refuse an entry that no server is started on.

    Raises:
        RepositoryError: a part of it is missing, or is not as the package writes it.
    """
    subject = f"entry '{entry.name}' is not fit to serve"
    require_no_error(((Level.error, message) for message in entry_faults(entry)), subject)
    require_no_error(label_faults(entry), subject)


def require_certificate(path: Path) -> Path:
    """Return the absolute path of a PEM file that holds a certificate and its key.

    Raises:
        SparseServeError: it does not.
    """
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path, password=lambda: "")
    except ssl.SSLError as error:
        raise SparseServeError(
            f"--tls-cert {path} is not a PEM file with a certificate and its key, without a password "
            f"({error.reason or error}): put both into one file"
        ) from error
    except OSError as error:
        raise SparseServeError(f"--tls-cert {path} cannot be read: {error.strerror}") from error
    return path.resolve()
