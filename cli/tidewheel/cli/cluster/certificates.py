"""The certificates of one cluster: a certificate authority and what it signs."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# A local cluster lives for hours; a year keeps a forgotten KEEP=1 cluster usable.
_LIFETIME = dt.timedelta(days=365)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Paths of a PEM certificate and of its private key."""

    certificate: Path
    key: Path


class CertificateAuthority:
    """Elliptic-curve keys throughout: an RSA key takes longer to make than etcd takes to start."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.files = KeyPair(folder / "ca.crt", folder / "ca.key")
        if self.files.key.exists():
            self._key = _load_key(self.files.key)
            self._certificate = x509.load_pem_x509_certificate(self.files.certificate.read_bytes())
        else:
            self._key = ec.generate_private_key(ec.SECP256R1())
            self._certificate = _self_signed(self._key)
            _write(self.files, self._certificate, self._key)

    def issue(
        self,
        file_name: str,
        *,
        user: str,
        groups: Sequence[str] = (),
        hosts: Sequence[str] = (),
    ) -> KeyPair:
        """A certificate for client and server use; `hosts`, names or addresses, are who may present it as a server."""
        files = KeyPair(self._folder / f"{file_name}.crt", self._folder / f"{file_name}.key")
        if files.key.exists():
            return files
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, user)])
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = _builder(subject, self._certificate.subject, key.public_key())
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_alternative(h) for h in hosts]), critical=False
            )
        _write(files, builder.sign(self._key, hashes.SHA256()), key)
        return files

    def service_account_keys(self) -> KeyPair:
        """The pair that signs and verifies service account tokens; `certificate` holds the bare public key."""
        files = KeyPair(self._folder / "service-account.pub", self._folder / "service-account.key")
        if not files.key.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            public = key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            files.certificate.write_bytes(public)
            _write_secret(files.key, _pem(key))
        return files


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _self_signed(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tidewheel-local-cluster")])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = _builder(subject, subject, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())


def _builder(subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        # Clocks of containers and hosts may differ by a little.
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + _LIFETIME)
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(files: KeyPair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_secret(files.key, _pem(key))


def _write_secret(path: Path, content: bytes) -> None:
    """Last of a pair, and by rename: a key file that exists is complete, and so is its certificate."""
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.rename(path)


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{path} is not an elliptic-curve key; delete the folder {path.parent} to make new ones")
    return key
