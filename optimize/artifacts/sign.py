"""Signing artifacts with a key file, and holding them against the key of whoever is trusted."""

from __future__ import annotations

import os
from pathlib import Path

from querywright.errors import ArtifactError, InputError
from querywright.optimize.artifacts.files import artifact_files
from querywright.optimize.artifacts.folders import SIGNATURE, replace_folder
from querywright.optimize.artifacts.signatures import check_extra, fingerprint, signature_of, signature_parts

PUBLIC_SUFFIX = ".pub"
"""Ends the name of the public key's file, beside the private one."""


def make_keys(path: Path) -> tuple[Path, str]:
    """Write a new private key, readable by its owner only, and its public key beside it.

    Args:
        path: File of the private key; the public one has ``.pub`` after its name.

    Returns:
        The public key's file, and the key's fingerprint.

    Raises:
        InputError: One of the files is there, its folder is not, or ``cryptography`` is not installed.
    """
    check_extra()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    public = path.with_name(path.name + PUBLIC_SUFFIX)
    for one in (path, public):
        if one.exists() or one.is_symlink():
            raise InputError(f"{one.name!r} is there already, and a key is never replaced; give another file")
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    shown = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    try:
        _write_new(path, secret, 0o600)
        _write_new(public, shown, 0o644)
    except OSError as error:
        raise InputError(f"the key {path.name!r} cannot be written: {error.strerror}; give another file") from error
    return public, fingerprint(key.public_key())


def sign_artifact(folder: Path, key: Path) -> str:
    """Sign an artifact; an earlier signature is replaced.

    Args:
        folder: The artifact's.
        key: The private key file.

    Returns:
        Fingerprint of the key.

    Raises:
        ArtifactError: The artifact is missing, damaged or edited, was written again meanwhile, or cannot be written.
        InputError: The file is no private key, or ``cryptography`` is not installed.
    """
    target = folder.resolve()
    manifest = artifact_files(target)["manifest.json"]
    signature = signature_of(manifest, key)

    def signed() -> dict[str, bytes]:
        data = artifact_files(target)
        if data["manifest.json"] != manifest:
            raise ArtifactError(
                f"the artifact {folder.name!r} was written again while it was signed; nothing was changed. Look at it, "
                "and sign it again"
            )
        return {**data, SIGNATURE: signature}

    try:
        replace_folder(target, signed)
    except OSError as error:
        raise ArtifactError(
            f"the artifact {folder.name!r} could not be signed: {error.strerror}; nothing was changed. Make the folder "
            "writable or make room"
        ) from error
    return signature_parts(signature)[1]


def _write_new(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(data)
        file.flush()
        os.fsync(descriptor)
