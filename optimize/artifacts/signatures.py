"""Ed25519 signatures over bytes: made with a private key file, checked with the public one.

A signature travels as a small JSON file that names its algorithm, the signature and the SHA-256 of the public key.
Which key is believed is never read from it: whoever checks names the key file.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.errors import ArtifactError, InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ALGORITHM = "Ed25519"
LARGEST_KEY = 10_000
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def signature_of(signed: bytes, key: Path) -> bytes:
    """The signature file for some bytes.

    Args:
        signed: What is signed.
        key: A private key file, as ``artifact keygen`` writes it.

    Raises:
        InputError: The file is no such key, or ``cryptography`` is not installed.
    """
    private = private_key(key)
    return _written(private.sign(signed).hex(), fingerprint(private.public_key()))


def check_signed(signed: bytes, signature: bytes | None, public_key: Path) -> None:
    """Raise unless some bytes were signed by the owner of a key.

    Args:
        signed: What was signed, as it was read.
        signature: The signature file; None where there is none.
        public_key: The public key file.

    Raises:
        ArtifactError: There is no signature, it is of another key, or it does not fit.
        InputError: The file is no public key, or ``cryptography`` is not installed.
    """
    key = read_public_key(public_key)
    if signature is None:
        raise ArtifactError(
            f"it is not signed, but a signature by the key {public_key.name!r} is asked for; get it from its maker, or "
            "sign it: querywright artifact sign"
        )
    text, owner = signature_parts(signature)
    if owner != fingerprint(key):
        raise ArtifactError(
            f"it is signed by the key {owner[:16]}, not by {public_key.name!r} ({fingerprint(key)[:16]}); do not use "
            "it, or give the public key of whoever signed it if you trust them"
        )
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(bytes.fromhex(text), signed)
    except InvalidSignature as error:
        raise ArtifactError(
            "the signature does not fit: it was changed after it was signed; do not use it, get it again from its maker"
        ) from error


def signature_parts(data: bytes) -> tuple[str, str]:
    """Signature and fingerprint of the key that a signature file names; nothing is checked but its form.

    Raises:
        ArtifactError: It has another form.
    """
    try:
        content: Any = json.loads(data)
        signature, owner = str(content["signature"]), str(content["public_key"])
        if not (_SIGNATURE.fullmatch(signature) and _FINGERPRINT.fullmatch(owner)):
            raise ValueError("no signature")
        if _written(signature, owner) != data:  # one signature, one file
            raise ValueError("other bytes")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(
            f"the signature is none of {ALGORITHM} as querywright writes it; get it again from its maker, or sign again"
        ) from error
    return signature, owner


def fingerprint(key: Ed25519PublicKey) -> str:
    """SHA-256 of a public key, as hex."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def read_public_key(path: Path) -> Ed25519PublicKey:
    """The public key in a PEM file.

    Raises:
        InputError: It holds none, or ``cryptography`` is not installed.
    """
    check_extra()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key: object = None
    data = _key_bytes(path)
    try:
        key = load_pem_public_key(data)
    except (ValueError, TypeError) as error:
        raise _no_key(path, "public", ", the .pub file beside the private one") from error
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(path, "public", ", the .pub file beside the private one")
    return key


def private_key(path: Path) -> Ed25519PrivateKey:
    """The private key in a PEM file.

    Raises:
        InputError: It holds none, or ``cryptography`` is not installed.
    """
    check_extra()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key: object = None
    data = _key_bytes(path)
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a password
        raise _no_key(path, "private", "; make one: querywright artifact keygen") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(path, "private", "; make one: querywright artifact keygen")
    return key


def check_extra() -> None:
    """Raise when ``cryptography`` is not installed.

    Raises:
        InputError: It is not.
    """
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise InputError("signatures need the extra sign: pip install 'querywright[sign]'") from error


def _key_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_KEY + 1)
    except OSError as error:
        raise InputError(f"the key file {path.name!r} cannot be read: {error.strerror}; give its path") from error
    if len(data) > LARGEST_KEY:
        raise InputError(f"the key file {path.name!r} is too large for a key; give the file that keygen wrote")
    return data


def _no_key(path: Path, kind: str, remedy: str) -> InputError:
    return InputError(f"{path.name!r} holds no {kind} {ALGORITHM} key in PEM without a password; give one{remedy}")


def _written(signature: str, owner: str) -> bytes:
    content = {"algorithm": ALGORITHM, "signature": signature, "public_key": owner}
    return (json.dumps(content, indent=2) + "\n").encode()
