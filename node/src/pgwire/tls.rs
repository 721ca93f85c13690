//! TLS on the port of PostgreSQL clients, and the stream beneath a connection, encrypted or not.
//!
//! ```text
//!   client ---- SSLRequest ---->
//!          <--- S, or N --------      N if the configuration names no certificate
//!          ---- handshake ----->      nothing may come in between
//!          ---- startup ------->
//! ```

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pangea_sql::scram::Binding;
use sha2::{Digest, Sha256, Sha384, Sha512};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

/// A server's certificate and key, ready for handshakes.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    binding: Binding,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls(..)")
    }
}

impl Tls {
    /// Reads a certificate chain and its key, both from PEM files.
    ///
    /// # Errors
    /// When a file can't be read or has other contents, or the certificate and the key do not
    /// match: a description with the file's name.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, String> {
        let wrong = |path: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(|all| all.collect::<Result<Vec<_>, _>>())
            .map_err(|error| wrong(certificate, &error))?;
        let Some(own) = chain.first() else {
            return Err(wrong(certificate, &"the file contains no certificate"));
        };
        let binding = binding(own);
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, &error))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_single_cert(chain, secret)
            .map_err(|error| {
                format!("{} with {}: {error}", certificate.display(), key.display())
            })?;
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), binding })
    }

    /// The channel binding for logins over TLS.
    pub(super) fn binding(&self) -> &Binding {
        &self.binding
    }

    /// Performs the handshake with a client.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<Stream> {
        self.acceptor.accept(stream).await.map(|stream| Stream::Tls(Box::new(stream)))
    }
}

/// Splits the first DER element off `bytes`: its tag, its contents, and the rest.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = bytes.split_first_chunk::<2>()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // Lengths have up to four bytes; no certificate is longer.
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let len = digits.iter().fold(0, |len, &digit| len << 8 | usize::from(digit));
            (len, rest)
        }
        _ => return None,
    };
    let (inside, rest) = rest.split_at_checked(len)?;
    Some((tag, inside, rest))
}

/// `tls-server-end-point` of RFC 5929: the certificate's hash, by the hash function of its
/// signature, or by SHA-256 if that is MD5 or SHA-1. Signatures without a hash function have no
/// binding.
fn binding(certificate: &[u8]) -> Binding {
    // ecdsa-with-SHA256 .. SHA512, in the arc of ANSI X9.62.
    const ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4];
    // md5, sha1, sha256, sha384 and sha512WithRSAEncryption, in the arc of PKCS #1.
    const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1];
    let algorithm = || {
        let (_, whole, _) = element(certificate)?;
        let (_, _, rest) = element(whole)?;
        let (_, algorithm, _) = element(rest)?;
        let (tag, oid, _) = element(algorithm)?;
        (tag == 6).then_some(oid)
    };
    let Some(oid) = algorithm() else { return Binding::None };
    let bits = match (oid.strip_prefix(ECDSA), oid.strip_prefix(RSA)) {
        (Some([3, 2]), _) | (_, Some([4 | 5 | 11])) | (Some([1]), _) => 256,
        (Some([3, 3]), _) | (_, Some([12])) => 384,
        (Some([3, 4]), _) | (_, Some([13])) => 512,
        _ => return Binding::None,
    };
    Binding::ServerEndPoint(match bits {
        256 => Sha256::digest(certificate).to_vec(),
        384 => Sha384::digest(certificate).to_vec(),
        _ => Sha512::digest(certificate).to_vec(),
    })
}

/// A client's socket, with or without TLS.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    /// The state during the handshake, and after it has failed.
    Gone,
}

impl Stream {
    pub(super) fn is_encrypted(&self) -> bool {
        matches!(self, Self::Tls(_))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Gone => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Gone => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Gone => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Gone => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_bound_to_by_the_hash_of_its_signature() {
        let signed = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let certificate = signed.cert.der();
        let hash = Sha256::digest(certificate).to_vec();
        assert_eq!(binding(certificate), Binding::ServerEndPoint(hash));
        for len in 0..certificate.len() {
            assert_eq!(binding(&certificate[..len]), Binding::None, "cut at {len}");
        }
        for tag in 0..=255 {
            assert_eq!(binding(&[0x30, tag, 0x30, tag, 0xff, 0xff]), Binding::None);
        }
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told_with_its_name() {
        let temp = tempfile::tempdir().unwrap();
        let [certificate, key] = ["a.crt", "a.key"].map(|name| temp.path().join(name));
        let error = || Tls::read(&certificate, &key).unwrap_err();
        assert!(error().contains("a.crt: "), "{}", error());
        std::fs::write(&certificate, "nothing").unwrap();
        assert!(error().contains("a.crt: the file contains no certificate"), "{}", error());
        let [signed, other] = [0, 1]
            .map(|_| rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap());
        std::fs::write(&certificate, signed.cert.pem()).unwrap();
        assert!(error().contains("a.key: "), "{}", error());
        std::fs::write(&key, other.signing_key.serialize_pem()).unwrap();
        assert!(error().contains("a.crt with "), "{}", error());
        std::fs::write(&key, signed.signing_key.serialize_pem()).unwrap();
        Tls::read(&certificate, &key).unwrap();
    }
}
