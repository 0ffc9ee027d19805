"""What is deployed: an entry, its limits and what it is computed with. Targets make files of it."""

import math
import re
import ssl
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from sparse_serve.deploy.gateway import GATEWAY_IMAGE
from sparse_serve.deploy.limits import Limits
from sparse_serve.deploy.resources import Resources
from sparse_serve.digests import file_digest
from sparse_serve.errors import SparseServeError
from sparse_serve.repository.contents import MANIFEST_NAME
from sparse_serve.repository.entries import Entry

DEFAULT_STARTUP_TIMEOUT = 300

# Kubernetes takes 63 in the names of services, some of which have a suffix.
_MOST_CHARACTERS = 40
_OWN_DIGITS = 6
_UNLOAD_SECONDS = 5


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """An entry as it is to be served.

    Attributes:
        image: of Triton with the op library, as docker/ builds it.
        resources: what one server is given.
        gateway_image: of HAProxy.
        startup_timeout: seconds that a server may take to load the model.
    """

    entry: Entry
    limits: Limits
    image: str
    resources: Resources
    gateway_image: str = GATEWAY_IMAGE
    startup_timeout: int = DEFAULT_STARTUP_TIMEOUT

    @property
    def name(self) -> str:
        """The entry's name as services are named: a letter, then lower case letters, digits and hyphens.

        One that is changed for it, or cut, has digits of the entry's own behind it: others may become the
        same.
        """
        name = re.sub("[^a-z0-9]+", "-", self.entry.name.lower()).strip("-")
        name = name if name[:1].isalpha() else f"entry-{name}".strip("-")
        if name == self.entry.name and len(name) <= _MOST_CHARACTERS:
            return name
        own = sha256(self.entry.name.encode()).hexdigest()[:_OWN_DIGITS]
        return f"{name[: _MOST_CHARACTERS - _OWN_DIGITS - 1].rstrip('-')}-{own}"

    @property
    def manifest_digest(self) -> str:
        """The sha256 of the entry's manifest, which pins the entry."""
        return file_digest(self.entry.path / MANIFEST_NAME)

    @property
    def drain_timeout(self) -> int:
        """Whole seconds that a server has, once told to stop, for what it has been asked and to unload."""
        return math.ceil(self.limits.request_timeout) + _UNLOAD_SECONDS


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
