//! SCRAM-SHA-256: stored password verifiers, and the server side of a login (RFC 5802, RFC 7677).
//!
//! ```text
//!   client                                     server
//!     n,,n=,r=NONCE              ------------>   first
//!                                <------------   r=NONCE MORE,s=SALT,i=4096
//!     c=biws,r=NONCE MORE,p=PROOF ------------>  last: the proof matches the verifier
//!                                <------------   v=SIGNATURE
//! ```
//!
//! The server stores a [`Verifier`]. It is not sufficient to log in, and does not reveal the
//! password. A client cannot find out which users exist: for an unknown user, or one that may not
//! log in, the exchange uses [`Verifier::mock`], which no proof matches.
//!
//! With TLS a client may bind its login to the server's certificate, which prevents
//! man-in-the-middle attacks ([`Binding`]).

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The length of a hash in bytes.
const HASH_BYTES: usize = 32;
/// The length of a salt in bytes, as in PostgreSQL.
const SALT_BYTES: usize = 16;
/// The number of hash iterations, as in PostgreSQL.
const ITERATIONS: u32 = 4_096;
/// The maximum iterations of an imported verifier. The client does the work.
const ITERATIONS_MAX: u32 = 10_000_000;
/// The number of random bytes in a nonce, as in PostgreSQL.
const NONCE_BYTES: usize = 18;
/// The prefix of a verifier.
const PREFIX: &str = "SCRAM-SHA-256$";

/// The name of the mechanism.
pub const MECHANISM: &str = "SCRAM-SHA-256";
/// The name of the mechanism with channel binding to the server's certificate.
pub const MECHANISM_PLUS: &str = "SCRAM-SHA-256-PLUS";
/// The only supported channel binding.
const BINDING: &str = "tls-server-end-point";

type Hash = [u8; HASH_BYTES];

/// The reason why a login is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The client violated the protocol; contains a description.
    Malformed(&'static str),
    /// The password is wrong, or the user has none.
    WrongPassword,
}

/// The stored form of a password: `SCRAM-SHA-256$iterations:salt$stored key:server key`.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    iterations: u32,
    salt: Vec<u8>,
    stored_key: Hash,
    server_key: Hash,
    /// Whether it rejects all passwords, regardless of the keys.
    is_mock: bool,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier(..)")
    }
}

impl fmt::Display for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { iterations, salt, stored_key, server_key, .. } = self;
        let [salt, stored, server] =
            [&salt[..], stored_key, server_key].map(|it| BASE64.encode(it));
        write!(f, "{PREFIX}{iterations}:{salt}${stored}:{server}")
    }
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Hash {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// `Hi` of RFC 5802: hashes the password iteratively.
fn salted(password: &[u8], salt: &[u8], iterations: u32) -> Hash {
    let keyed = Hmac::<Sha256>::new_from_slice(password).expect("a key of any length");
    let next = |parts: &[&[u8]]| -> Hash {
        let mut mac = keyed.clone();
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().into()
    };
    let mut round = next(&[salt, &1u32.to_be_bytes()]);
    let mut all = round;
    for _ in 1..iterations {
        round = next(&[&round]);
        all.iter_mut().zip(round).for_each(|(all, byte)| *all ^= byte);
    }
    all
}

/// Returns unpredictable random bytes.
///
/// # Panics
/// If the system has no source of entropy, without which secrets are impossible.
fn chance<const LEN: usize>() -> [u8; LEN] {
    let mut bytes = [0; LEN];
    getrandom::fill(&mut bytes).expect("the system's entropy");
    bytes
}

/// Returns a random secret.
pub(crate) fn secret() -> [u8; HASH_BYTES] {
    chance()
}

impl Verifier {
    /// Makes the verifier of a password, with a random salt.
    pub fn new(password: &str) -> Self {
        Self::with_salt(password, &chance::<SALT_BYTES>())
    }

    fn with_salt(password: &str, salt: &[u8]) -> Self {
        // As in PostgreSQL, a password that SASLprep rejects is used unchanged.
        let prepared = stringprep::saslprep(password).unwrap_or(password.into());
        let salted = salted(prepared.as_bytes(), salt, ITERATIONS);
        let client_key = hmac(&salted, &[b"Client Key"]);
        Self {
            iterations: ITERATIONS,
            salt: salt.to_vec(),
            stored_key: Sha256::digest(client_key).into(),
            server_key: hmac(&salted, &[b"Server Key"]),
            is_mock: false,
        }
    }

    /// Parses a verifier; `None` if the text is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let (head, keys) = text.strip_prefix(PREFIX)?.split_once('$')?;
        let (iterations, salt) = head.split_once(':')?;
        let (stored, server) = keys.split_once(':')?;
        let iterations = iterations.parse().ok()?;
        let salt = BASE64.decode(salt).ok()?;
        let is_sound = (1..=ITERATIONS_MAX).contains(&iterations) && !salt.is_empty();
        let hash = |text| Hash::try_from(BASE64.decode(text).ok()?).ok();
        let (stored_key, server_key) = (hash(stored)?, hash(server)?);
        let verifier = Self { iterations, salt, stored_key, server_key, is_mock: false };
        is_sound.then_some(verifier)
    }

    /// Makes a stand-in for a user that cannot log in. Its salt is the same each time for a name
    /// and a secret, like that of a real user.
    pub fn mock(user: &str, secret: &[u8]) -> Self {
        let salt = hmac(secret, &[b"salt", user.as_bytes()])[..SALT_BYTES].to_vec();
        let keys = (chance(), chance());
        let (stored_key, server_key) = keys;
        Self { iterations: ITERATIONS, salt, stored_key, server_key, is_mock: true }
    }

    /// Whether this is the verifier of a password.
    pub fn is_of(&self, password: &str) -> bool {
        let other = Self::with_salt(password, &self.salt);
        self.iterations == ITERATIONS && bool::from(other.stored_key.ct_eq(&self.stored_key))
    }
}

/// The channel binding that a login over TLS may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// There is no TLS, or clients would not agree on a hash of the certificate.
    None,
    /// The hash of the server's certificate.
    ServerEndPoint(Vec<u8>),
}

impl Binding {
    /// The mechanisms offered to the client, the best first.
    pub fn mechanisms(&self) -> &'static [&'static str] {
        match self {
            Self::None => &[MECHANISM],
            Self::ServerEndPoint(_) => &[MECHANISM_PLUS, MECHANISM],
        }
    }
}

/// A login that waits for the client's proof.
#[derive(Debug)]
pub struct Exchange {
    verifier: Verifier,
    binding: Binding,
    /// The GS2 header: the beginning of the client's first message.
    header: String,
    client_first_bare: String,
    server_first: String,
    nonce: String,
}

/// Returns the value of the attribute that must come next, and the rest of the message.
fn attribute(rest: &str, name: char) -> Result<(&str, &str), Refusal> {
    let (value, rest) = rest.split_once(',').unwrap_or((rest, ""));
    let value = value.strip_prefix(name).and_then(|value| value.strip_prefix('='));
    let value = value.ok_or(Refusal::Malformed("an attribute is missing"))?;
    Ok((value, rest))
}

fn text(message: &[u8]) -> Result<&str, Refusal> {
    std::str::from_utf8(message).map_err(|_| Refusal::Malformed("it is no text"))
}

impl Exchange {
    /// Starts a login with the client's first message and the verifier of its user. The response is
    /// [`Exchange::first`].
    ///
    /// # Errors
    /// If the message is malformed, or requests an impossible channel binding.
    pub fn begin(
        mechanism: &str,
        message: &[u8],
        verifier: Verifier,
        binding: Binding,
    ) -> Result<Self, Refusal> {
        let more = BASE64.encode(chance::<NONCE_BYTES>());
        Self::begin_with(mechanism, message, verifier, binding, &more)
    }

    fn begin_with(
        mechanism: &str,
        message: &[u8],
        verifier: Verifier,
        binding: Binding,
        more: &str,
    ) -> Result<Self, Refusal> {
        let is_bound = mechanism == MECHANISM_PLUS;
        let known = binding.mechanisms().contains(&mechanism);
        if !known {
            return Err(Refusal::Malformed("client selected an invalid SASL mechanism"));
        }
        let message = text(message)?;
        let (flag, rest) =
            message.split_once(',').ok_or(Refusal::Malformed("the GS2 header is missing"))?;
        match (flag.split_once('='), flag) {
            (Some(("p", BINDING)), _) if is_bound => {}
            (Some(("p", _)), _) if is_bound => {
                return Err(Refusal::Malformed("unsupported SCRAM channel-binding type"));
            }
            (Some(("p", _)), _) | (None, "n" | "y") if is_bound || flag.starts_with('p') => {
                return Err(Refusal::Malformed("the channel binding does not match the mechanism"));
            }
            // The client supports channel binding, but believes that the server does not. An
            // attacker may have removed the mechanism from the server's offer.
            (None, "y") if binding != Binding::None => {
                let reason = "the client assumes that the server does not support channel \
                              binding, but it does";
                return Err(Refusal::Malformed(reason));
            }
            (None, "n" | "y") => {}
            _ => return Err(Refusal::Malformed("unexpected channel-binding flag")),
        }
        let (identity, bare) =
            rest.split_once(',').ok_or(Refusal::Malformed("the GS2 header is missing"))?;
        if !identity.is_empty() {
            return Err(Refusal::Malformed("client uses authorization identity"));
        }
        let header = message[..message.len() - bare.len()].to_owned();
        if bare.starts_with("m=") {
            return Err(Refusal::Malformed("client requires an unsupported SCRAM extension"));
        }
        // The user is the one in the connection's startup message, as in PostgreSQL.
        let (_, after) = attribute(bare, 'n')?;
        let (client_nonce, _) = attribute(after, 'r')?;
        let is_printable = client_nonce.bytes().all(|byte| matches!(byte, 0x21..=0x7e));
        if client_nonce.is_empty() || !is_printable {
            return Err(Refusal::Malformed("non-printable characters in SCRAM nonce"));
        }
        let nonce = format!("{client_nonce}{more}");
        let salt = BASE64.encode(&verifier.salt);
        let server_first = format!("r={nonce},s={salt},i={}", verifier.iterations);
        let client_first_bare = bare.to_owned();
        Ok(Self { verifier, binding, header, client_first_bare, server_first, nonce })
    }

    /// Returns the response to the client's first message.
    pub fn first(&self) -> &str {
        &self.server_first
    }

    /// Checks the client's last message. Returns the response, which proves the server's identity.
    ///
    /// # Errors
    /// If the message is malformed, or its proof is wrong.
    pub fn last(&self, message: &[u8]) -> Result<String, Refusal> {
        let message = text(message)?;
        let (without_proof, proof) =
            message.rsplit_once(",p=").ok_or(Refusal::Malformed("the proof is missing"))?;
        let (bound, rest) = attribute(without_proof, 'c')?;
        let mut expected = self.header.clone().into_bytes();
        if let (Binding::ServerEndPoint(hash), true) = (&self.binding, self.header.starts_with('p'))
        {
            expected.extend_from_slice(hash);
        }
        if bound != BASE64.encode(expected) {
            return Err(Refusal::Malformed("SCRAM channel binding check failed"));
        }
        let (nonce, _) = attribute(rest, 'r')?;
        if nonce != self.nonce {
            return Err(Refusal::Malformed("nonce does not match"));
        }
        let proof = BASE64.decode(proof).ok().and_then(|proof| Hash::try_from(proof).ok());
        let proof = proof.ok_or(Refusal::Malformed("malformed proof"))?;
        let Self { client_first_bare, server_first, verifier, .. } = self;
        let said = [
            client_first_bare.as_bytes(),
            b",",
            server_first.as_bytes(),
            b",",
            without_proof.as_bytes(),
        ];
        let mut client_key = hmac(&verifier.stored_key, &said);
        client_key.iter_mut().zip(proof).for_each(|(key, byte)| *key ^= byte);
        let stored: Hash = Sha256::digest(client_key).into();
        if !bool::from(stored.ct_eq(&verifier.stored_key)) || verifier.is_mock {
            return Err(Refusal::WrongPassword);
        }
        Ok(format!("v={}", BASE64.encode(hmac(&verifier.server_key, &said))))
    }
}

#[cfg(test)]
mod tests {
    use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};
    use proptest::prelude::*;

    use super::*;

    /// Logs in with the client of another implementation.
    fn log_in(
        verifier: Verifier,
        password: &str,
        (server, client): (Binding, ChannelBinding),
        mechanism: &str,
    ) -> Result<(), Refusal> {
        let mut client = ScramSha256::new(password.as_bytes(), client);
        let exchange = Exchange::begin(mechanism, client.message(), verifier, server)?;
        client.update(exchange.first().as_bytes()).unwrap();
        let last = exchange.last(client.message())?;
        client.finish(last.as_bytes()).expect("the server proves itself too");
        Ok(())
    }

    fn unbound() -> (Binding, ChannelBinding) {
        (Binding::None, ChannelBinding::unsupported())
    }

    /// The example in RFC 7677, section 3.
    #[test]
    fn the_example_of_the_rfc_comes_out() {
        let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let verifier = Verifier::with_salt("pencil", &salt);
        let first = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
        let more = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        let exchange =
            Exchange::begin_with(MECHANISM, first, verifier, Binding::None, more).unwrap();
        assert_eq!(
            exchange.first(),
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        );
        let last = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                     p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
        let signature = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
        assert_eq!(exchange.last(last), Ok(signature.to_owned()));
        let wrong = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                      p=eHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
        assert_eq!(exchange.last(wrong), Err(Refusal::WrongPassword));
        let replayed = exchange.last(&last.map(|byte| if byte == b'%' { b'&' } else { byte }));
        assert_eq!(replayed, Err(Refusal::Malformed("nonce does not match")));
    }

    #[test]
    fn only_the_right_password_logs_in_and_nobody_does_by_a_mock() {
        for password in ["x", "pässwörd", "I\u{ad}X", "\u{2168}", " ", "a,b=c"] {
            let verifier = Verifier::new(password);
            assert!(verifier.is_of(password) && !verifier.is_of("y"));
            assert_eq!(log_in(verifier.clone(), password, unbound(), MECHANISM), Ok(()));
            let wrong = log_in(verifier, "y", unbound(), MECHANISM);
            assert_eq!(wrong, Err(Refusal::WrongPassword), "{password}");
        }
        let mock = |user| Verifier::mock(user, b"secret");
        assert_eq!(log_in(mock("a"), "x", unbound(), MECHANISM), Err(Refusal::WrongPassword));
        assert_eq!(mock("a").salt, mock("a").salt);
        assert_ne!(mock("a").salt, mock("b").salt);
        assert_ne!(mock("a").salt, Verifier::mock("a", b"other").salt);
    }

    #[test]
    fn a_login_is_bound_to_the_certificate_that_the_client_sees() {
        let hash = vec![7; 32];
        let server = || Binding::ServerEndPoint(hash.clone());
        let client = |byte| ChannelBinding::tls_server_end_point(vec![byte; 32]);
        let verifier = Verifier::new("x");
        let log_in = |binding, mechanism| log_in(verifier.clone(), "x", binding, mechanism);
        assert_eq!(log_in((server(), client(7)), MECHANISM_PLUS), Ok(()));
        let failed = Err(Refusal::Malformed("SCRAM channel binding check failed"));
        assert_eq!(log_in((server(), client(8)), MECHANISM_PLUS), failed);
        assert_eq!(log_in((server(), ChannelBinding::unsupported()), MECHANISM), Ok(()));
        for (binding, mechanism) in [
            ((server(), ChannelBinding::unrequested()), MECHANISM),
            ((server(), ChannelBinding::unsupported()), MECHANISM_PLUS),
            ((server(), client(7)), MECHANISM),
            ((Binding::None, client(7)), MECHANISM_PLUS),
            (unbound(), "PLAIN"),
        ] {
            let refused = log_in(binding, mechanism);
            assert!(matches!(refused, Err(Refusal::Malformed(_))), "{refused:?}");
        }
    }

    #[test]
    fn what_is_kept_is_what_postgresql_keeps() {
        let verifier = Verifier::new("secret");
        let text = verifier.to_string();
        assert_eq!(Verifier::parse(&text), Some(verifier.clone()));
        assert_eq!(format!("{verifier:?}"), "Verifier(..)", "no log has it");
        let other = postgres_protocol::password::scram_sha_256(b"secret");
        assert!(Verifier::parse(&other).unwrap().is_of("secret"));
        for wrong in ["", "md5", "secret", &text[1..], &text[..text.len() - 2]] {
            assert_eq!(Verifier::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Verifier::parse(&text.replace("4096", "0")), None);
        assert_eq!(Verifier::parse(&text.replace("4096", "-1")), None);
    }

    proptest! {
        #[test]
        fn no_message_brings_a_server_down(
            first in "(n|y|p=[a-z-]{0,9})?,{0,2}[nmr=,a-z]{0,12}\\PC{0,6}",
            last in "(c=biws)?,?(r=[a-z]*)?,?(p=)?\\PC{0,9}",
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let binding = Binding::ServerEndPoint(vec![1]);
            for mechanism in binding.mechanisms() {
                let verifier = Verifier::mock("a", b"");
                let _ = Exchange::begin(mechanism, &bytes, verifier.clone(), binding.clone());
                let _ = Exchange::begin(mechanism, first.as_bytes(), verifier, binding.clone());
            }
            let verifier = Verifier::mock("a", b"");
            let exchange = Exchange::begin(MECHANISM, b"n,,n=,r=a", verifier, Binding::None);
            let exchange = exchange.unwrap();
            prop_assert!(exchange.last(last.as_bytes()).is_err());
            prop_assert!(exchange.last(&bytes).is_err());
        }
    }
}
