from __future__ import annotations

import json
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from querywright.errors import ArtifactError, InputError
from querywright.optimize.artifacts import folders, sign
from querywright.optimize.artifacts.files import read_artifact
from querywright.optimize.artifacts.sign import make_keys, sign_artifact
from querywright.programs import make_program


@pytest.fixture
def signed(artifact, keys):
    sign_artifact(artifact, keys[0])
    return artifact


def test_a_signed_artifact_is_told_by_its_public_key(signed, keys):
    assert sorted(one.name for one in signed.iterdir()) == [
        "README.md", "golden.jsonl", "manifest.json", "program.json", "signature.json",
    ]  # fmt: skip
    read_artifact(signed, public_key=keys[1])
    assert read_artifact(signed, public_key=keys[1]) == read_artifact(signed)
    content = json.loads((signed / "signature.json").read_text())
    assert set(content) == {"algorithm", "signature", "public_key"}
    assert content["algorithm"] == "Ed25519"


def test_the_private_key_is_for_its_owner_only_and_never_replaced(keys):
    private, public = keys
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert public.name == "maker.pub"
    before = private.read_bytes()
    with pytest.raises(InputError, match="'maker' is there already"):
        make_keys(private)
    private.rename(private.with_name("elsewhere"))
    with pytest.raises(InputError, match=r"'maker\.pub' is there already"):
        make_keys(private)
    assert not private.exists()
    assert private.with_name("elsewhere").read_bytes() == before
    with pytest.raises(InputError, match="cannot be written"):
        make_keys(private.parent / "none" / "key")


def test_an_artifact_without_a_signature_is_refused(artifact, keys):
    with pytest.raises(ArtifactError, match=r"not signed, but a signature by the key 'maker\.pub' is asked for"):
        read_artifact(artifact, public_key=keys[1])


def test_the_signature_of_somebody_else_is_refused(signed, tmp_path):
    other, _ = make_keys(tmp_path / "other")
    with pytest.raises(ArtifactError, match=r"signed by the key .*, not by 'other\.pub'"):
        read_artifact(signed, public_key=other)


def test_a_signature_that_names_my_key_and_is_not_mine_is_refused(signed, keys, tmp_path):
    mine = json.loads((signed / "signature.json").read_text())
    make_keys(tmp_path / "other")
    sign_artifact(signed, tmp_path / "other")
    forged = {**json.loads((signed / "signature.json").read_text()), "public_key": mine["public_key"]}
    (signed / "signature.json").write_text(json.dumps(forged, indent=2) + "\n")
    with pytest.raises(ArtifactError, match="the signature does not fit"):
        read_artifact(signed, public_key=keys[1])


def test_the_signature_of_another_artifact_is_refused(signed, keys, place, write):
    write(place / "b", made={"dev": {"value": 0.99, "n": 4}})
    (place / "b" / "signature.json").write_bytes((signed / "signature.json").read_bytes())
    with pytest.raises(ArtifactError, match="the signature does not fit"):
        read_artifact(place / "b", public_key=keys[1])


def test_an_artifact_that_was_written_again_has_no_stale_signature(signed, keys, write):
    write(signed, make_program("plain", lambda query, k: [], reader=None))
    assert not (signed / "signature.json").exists()
    with pytest.raises(ArtifactError, match="not signed"):
        read_artifact(signed, public_key=keys[1])
    sign_artifact(signed, keys[0])
    read_artifact(signed, public_key=keys[1])


def test_what_was_compiled_meanwhile_is_kept_and_not_signed(artifact, keys, write, monkeypatch):
    def slowly(manifest, key):
        write(artifact, made={"dev": {"value": 0.99, "n": 4}})
        return real(manifest, key)

    real = sign.signature_of
    monkeypatch.setattr(sign, "signature_of", slowly)
    with pytest.raises(ArtifactError, match="was written again while it was signed"):
        sign_artifact(artifact, keys[0])
    assert read_artifact(artifact).manifest.made == {"dev": {"value": 0.99, "n": 4}}
    assert not (artifact / "signature.json").exists()
    monkeypatch.undo()
    sign_artifact(artifact, keys[0])
    assert read_artifact(artifact, public_key=keys[1]).manifest.made == {"dev": {"value": 0.99, "n": 4}}


def test_what_was_edited_is_not_signed(artifact, keys):
    (artifact / "program.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"program\.json was changed"):
        sign_artifact(artifact, keys[0])
    assert not (artifact / "signature.json").exists()


@pytest.mark.parametrize("damage", ["link", "folder", "huge", "empty", "other form", "spaces"])
def test_a_signature_that_is_none_is_refused(damage, signed, keys, place):
    file = signed / "signature.json"
    data = file.read_bytes()
    file.unlink()
    if damage == "link":
        (place / "elsewhere").write_bytes(data)
        file.symlink_to(place / "elsewhere")
    elif damage == "folder":
        file.mkdir()
    else:
        file.write_bytes(
            {
                "huge": data + b" " * folders.OPTIONAL["signature.json"],
                "empty": b"",
                "other form": b"[[]]",
                "spaces": data.replace(b'": "', b'":  "'),
            }[damage]
        )
    with pytest.raises(ArtifactError, match="signature"):
        read_artifact(signed, public_key=keys[1])


def test_a_key_that_is_none_is_said(artifact, keys, tmp_path):
    private, public = keys
    with pytest.raises(InputError, match=r"'maker' holds no public Ed25519 key .*\.pub"):
        read_artifact(artifact, public_key=private)
    with pytest.raises(InputError, match=r"'maker\.pub' holds no private Ed25519 key .*keygen"):
        sign_artifact(artifact, public)
    with pytest.raises(InputError, match=r"'none' cannot be read: No such file"):
        read_artifact(artifact, public_key=tmp_path / "none")
    (tmp_path / "huge").write_bytes(b"-" * 20_000)
    with pytest.raises(InputError, match="too large for a key"):
        sign_artifact(artifact, tmp_path / "huge")
    locked = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")
    )
    (tmp_path / "locked").write_bytes(locked)
    with pytest.raises(InputError, match="without a password"):
        sign_artifact(artifact, tmp_path / "locked")


def test_without_the_extra_it_is_named(artifact, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cryptography", None)
    with pytest.raises(InputError, match=r"need the extra sign: pip install 'querywright\[sign\]'"):
        make_keys(tmp_path / "key")
    assert read_artifact(artifact)
