//! TLS, passwords and limits over real sockets, including malicious clients.

use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use pangea_node::pgwire::{Authentication, Security, TIMEOUT_DEFAULT, Tls, serve_with};
use pangea_sql::memory::MemoryEngine;
use pangea_sql::session::authorization::set_first_password;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, NoTls, TlsConnect};
use tokio_postgres::{Client, Config, Error, Socket};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::hostile::{frame, startup};

const PASSWORD: &str = "a long one";

/// A TLS identity: the server's configuration, and the certificate that clients trust.
struct Certificate {
    tls: Tls,
    der: CertificateDer<'static>,
}

fn certificate() -> Certificate {
    let signed = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let temp = tempfile::tempdir().unwrap();
    let [certificate, key] = ["node.crt", "node.key"].map(|name| temp.path().join(name));
    std::fs::write(&certificate, signed.cert.pem()).unwrap();
    std::fs::write(&key, signed.signing_key.serialize_pem()).unwrap();
    Certificate { tls: Tls::read(&certificate, &key).unwrap(), der: signed.cert.der().clone() }
}

/// A client's TLS configuration for `tokio-postgres`.
#[derive(Clone)]
struct Connector {
    connector: TlsConnector,
    /// The channel binding that the client uses.
    hash: Vec<u8>,
}

impl Connector {
    fn trusting(certificate: &CertificateDer<'static>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let hash = Sha256::digest(certificate).to_vec();
        Self { connector: TlsConnector::from(Arc::new(config)), hash }
    }
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Encrypted;
    type TlsConnect = Self;
    type Error = io::Error;

    fn make_tls_connect(&mut self, _: &str) -> io::Result<Self> {
        Ok(self.clone())
    }
}

impl TlsConnect<Socket> for Connector {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let name = ServerName::try_from("localhost").unwrap();
            let stream = self.connector.connect(name, socket).await?;
            Ok(Encrypted { stream, hash: self.hash })
        })
    }
}

struct Encrypted {
    stream: TlsStream<Socket>,
    hash: Vec<u8>,
}

impl tokio_postgres::tls::TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::tls_server_end_point(self.hash.clone())
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn passwords(tls: Option<&Tls>) -> Security {
    let authentication = Authentication::ScramSha256;
    Security { authentication, tls: tls.cloned(), ..Security::default() }
}

/// Runs a test against a server on this local address.
fn with_security_on<F: Future<Output = ()>>(
    ip: IpAddr,
    security: Security,
    test: impl FnOnce(SocketAddr) -> F,
) {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let engine = MemoryEngine::new();
        assert_eq!(set_first_password(&engine, PASSWORD).await, Ok(true));
        assert_eq!(set_first_password(&engine, "another").await, Ok(false));
        let listener = TcpListener::bind((ip, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(serve_with(security, listener, Arc::new(engine), async {
            let _ = stopped.await;
        }));
        let test = tokio::time::timeout(TIMEOUT_DEFAULT, test(address));
        test.await.expect("no wait is endless");
        stop.send(()).unwrap();
        server.await.unwrap().unwrap();
    });
}

fn with_security<F: Future<Output = ()>>(security: Security, test: impl FnOnce(SocketAddr) -> F) {
    with_security_on([127, 0, 0, 1].into(), security, test);
}

fn config(address: SocketAddr, user: &str, password: &str) -> Config {
    let mut config = Config::new();
    config.host(address.ip().to_string()).port(address.port());
    config.user(user).password(password).dbname("db").ssl_mode(SslMode::Disable);
    config
}

async fn plain(address: SocketAddr, user: &str, password: &str) -> Result<Client, Error> {
    let (client, connection) = config(address, user, password).connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn encrypted(config: &mut Config, connector: &Connector) -> Result<Client, Error> {
    let config = config.ssl_mode(SslMode::Require);
    let (client, connection) = config.connect(connector.clone()).await?;
    tokio::spawn(connection);
    Ok(client)
}

fn reported<T>(result: Result<T, Error>) -> (String, String) {
    let error = result.err().expect("the connection is refused");
    let error =
        error.as_db_error().unwrap_or_else(|| panic!("the server reports the reason: {error:?}"));
    (error.code().code().to_owned(), error.message().to_owned())
}

#[test]
fn the_right_password_opens_a_session_over_tls_that_is_bound_to_the_certificate() {
    let Certificate { tls, der } = certificate();
    with_security(passwords(Some(&tls)), |address| async move {
        let connector = Connector::trusting(&der);
        let mut good = config(address, "pangea", PASSWORD);
        for binding in [
            tokio_postgres::config::ChannelBinding::Disable,
            tokio_postgres::config::ChannelBinding::Require,
        ] {
            let client = encrypted(good.channel_binding(binding), &connector).await.unwrap();
            let row = client.query_one("select current_user, $1::text", &[&"é"]).await.unwrap();
            assert_eq!((row.get(0), row.get(1)), ("pangea", "é"));
        }
        // The binding to another server's certificate is rejected.
        let other = Connector { hash: vec![7; 32], ..connector.clone() };
        let (code, message) = reported(encrypted(&mut good, &other).await);
        assert_eq!(code, "08P01");
        assert!(message.contains("channel binding"), "{message}");
        // A login from this machine needs no TLS, because the password is not transmitted.
        let client = plain(address, "pangea", PASSWORD).await.unwrap();
        assert_eq!(client.query("select 1", &[]).await.unwrap().len(), 1);
    });
}

#[test]
fn a_wrong_password_and_a_user_that_there_is_not_are_told_the_same() {
    let Certificate { tls, der } = certificate();
    with_security(passwords(Some(&tls)), |address| async move {
        let connector = Connector::trusting(&der);
        let admin = plain(address, "pangea", PASSWORD).await.unwrap();
        let script = "create role none_yet login; create role old login password 'x' valid until \
                      '2001-01-01'; create role app password 'x'; create role me login password ''";
        admin.batch_execute(script).await.unwrap();
        for (user, password) in [
            ("pangea", "wrong"),
            ("nobody", "x"),
            ("none_yet", "x"),
            ("old", "x"),
            ("me", "x"),
            ("a'\"; -- é", "x"),
        ] {
            let reported =
                reported(encrypted(&mut config(address, user, password), &connector).await);
            let message = format!("password authentication failed for user \"{user}\"");
            assert_eq!(reported, ("28P01".to_owned(), message));
        }
        // A client that knows the password may learn more about the role.
        let (code, message) = reported(plain(address, "app", "x").await);
        assert_eq!((&*code, &*message), ("28000", "role \"app\" is not permitted to log in"));
        admin.batch_execute("alter role app login; alter role app password 'y'").await.unwrap();
        assert_eq!(reported(plain(address, "app", "x").await).0, "28P01");
        plain(address, "app", "y").await.unwrap();
    });
}

#[test]
fn a_role_has_as_many_sessions_as_its_limit() {
    with_security(passwords(None), |address| async move {
        let admin = plain(address, "pangea", PASSWORD).await.unwrap();
        let script = "create role app login password 'x' connection limit 1";
        admin.batch_execute(script).await.unwrap();
        let first = plain(address, "app", "x").await.unwrap();
        let (code, message) = reported(plain(address, "app", "x").await);
        assert_eq!((&*code, &*message), ("53300", "too many connections for role \"app\""));
        drop(first);
        while let Err(error) = plain(address, "app", "x").await {
            assert_eq!(error.code(), Some(&SqlState::TOO_MANY_CONNECTIONS));
        }
    });
}

#[test]
fn trust_lets_anybody_in_until_there_is_somebody() {
    with_security(Security::default(), |address| async move {
        let me = plain(address, "me", "").await.unwrap();
        me.batch_execute("create table t (a int); create role app login").await.unwrap();
        let (code, message) = reported(plain(address, "me", "").await);
        assert_eq!((&*code, &*message), ("28000", "role \"me\" does not exist"));
        let app = plain(address, "app", "").await.unwrap();
        let (code, message) = reported(app.query("select * from t", &[]).await);
        assert_eq!((&*code, &*message), ("42501", "permission denied for table t"));
        let admin = plain(address, "pangea", "").await.unwrap();
        // Existing sessions keep their privileges.
        for client in [&me, &admin] {
            assert!(client.query("select * from t", &[]).await.unwrap().is_empty());
        }
        // Privileges are checked at each execution, even if the statement is prepared and its plan
        // cached.
        let statement = app.prepare("select * from t").await.unwrap();
        admin.batch_execute("grant select on t to app").await.unwrap();
        assert!(app.query(&statement, &[]).await.unwrap().is_empty());
        admin.batch_execute("revoke select on t from app").await.unwrap();
        assert_eq!(reported(app.query(&statement, &[]).await).0, "42501");
        admin.batch_execute("drop role app").await.unwrap();
        assert_eq!(reported(app.query(&statement, &[]).await).0, "42704");
    });
}

/// The address by which other machines would reach this one, if there is a network.
fn off_loopback() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Connecting a UDP socket sends no packet.
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}

#[test]
fn a_client_off_loopback_must_encrypt() {
    let Some(ip) = off_loopback() else {
        eprintln!("no address other than loopback: test skipped");
        return;
    };
    let Certificate { tls, der } = certificate();
    with_security_on(ip, passwords(Some(&tls)), |address| async move {
        let (code, message) = reported(plain(address, "pangea", PASSWORD).await);
        assert_eq!(code, "28000");
        assert!(message.starts_with("no encryption"), "{message}");
        let mut good = config(address, "pangea", PASSWORD);
        encrypted(&mut good, &Connector::trusting(&der)).await.unwrap();
    });
    let security = Security { allows_plaintext: true, ..passwords(None) };
    with_security_on(ip, security, |address| async move {
        plain(address, "pangea", PASSWORD).await.unwrap();
    });
}

#[test]
fn a_request_to_cancel_comes_over_tls_too() {
    let Certificate { tls, der } = certificate();
    with_security(passwords(Some(&tls)), |address| async move {
        let connector = Connector::trusting(&der);
        let mut good = config(address, "pangea", PASSWORD);
        let client = encrypted(&mut good, &connector).await.unwrap();
        client.cancel_token().cancel_query(connector).await.unwrap();
        // No statement was running, so nothing was cancelled.
        assert_eq!(client.query("select 1", &[]).await.unwrap().len(), 1);
    });
}

/// An SSLRequest packet.
const SSL_REQUEST: &[u8] = &[0, 0, 0, 8, 4, 210, 22, 47];

/// Sends bytes, and reads until the server closes the connection.
async fn talk(address: SocketAddr, bytes: Vec<u8>) -> Vec<u8> {
    let talk = move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&bytes).unwrap();
        let mut answer = Vec::new();
        // A server that closes a socket with unread bytes resets the connection.
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    tokio::task::spawn_blocking(talk).await.unwrap()
}

#[test]
fn who_breaks_off_a_handshake_or_puts_something_before_it_gets_nowhere() {
    let Certificate { tls, .. } = certificate();
    let security = Security { timeout: Duration::from_secs(1), ..passwords(Some(&tls)) };
    with_security(security, |address| async move {
        let begun = Instant::now();
        // A ClientHello that is never completed.
        let half = [SSL_REQUEST, &[0x16, 3, 1, 2, 0, 1, 0]].concat();
        let silent = [Vec::new(), SSL_REQUEST.to_vec(), startup(0)];
        let late = silent.into_iter().map(|bytes| tokio::spawn(talk(address, bytes)));
        let late: Vec<_> = late.collect();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(SSL_REQUEST).unwrap();
        let mut answer = [0];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, *b"S");
        stream.write_all(&half[SSL_REQUEST.len()..]).unwrap();
        let rest = tokio::task::spawn_blocking(move || {
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
        });
        rest.await.unwrap();
        for late in late {
            late.await.unwrap();
        }
        assert!(begun.elapsed() >= Duration::from_secs(1), "the handshake was given its time");
        // Bytes sent before the handshake are not treated as encrypted.
        let before = [SSL_REQUEST, &startup(0)].concat();
        let answer = talk(address, before).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with('S') && answer.contains("received unencrypted data"));
        plain(address, "pangea", PASSWORD).await.unwrap();
    });
}

#[test]
fn garbage_in_a_login_ends_it_alone() {
    let initial = |mechanism: &str, data: &[u8]| {
        let len = (data.len() as u32).to_be_bytes();
        frame(b'p', &[mechanism.as_bytes(), &[0], &len, data].concat())
    };
    with_security(passwords(None), |address| async move {
        let first = initial("SCRAM-SHA-256", b"n,,n=,r=abc");
        let cases = [
            (frame(b'Q', b"select 1\0"), "expected SASL response, got message type 81"),
            (b"p\0\0\xff\xff".to_vec(), "invalid message length 65535"),
            (b"p\0\0\0\0".to_vec(), "invalid message length 0"),
            (frame(b'p', b""), "invalid string in message"),
            (frame(b'p', b"SCRAM-SHA-256\0\0\0\0\xff"), "invalid message format"),
            (frame(b'p', b"\xff\0\0\0\0\0"), "invalid SASL mechanism"),
            (initial("PLAIN", b"x"), "invalid SASL mechanism"),
            (initial("SCRAM-SHA-256-PLUS", b"p=tls-server-end-point,,n=,r=a"), "mechanism"),
            (initial("SCRAM-SHA-256", b"\xff\xfe"), "malformed SCRAM message"),
            (initial("SCRAM-SHA-256", b"n,,n=,r="), "malformed SCRAM message"),
            ([first.clone(), frame(b'p', b"c=biws,r=abc,p=")].concat(), "nonce does not match"),
            ([first, frame(b'p', b"")].concat(), "malformed SCRAM message"),
        ];
        for (bytes, message) in cases {
            let answer = talk(address, [startup(0), bytes].concat()).await;
            let answer = String::from_utf8_lossy(&answer).into_owned();
            assert!(answer.contains("SFATAL\0VFATAL\0C08P01\0"), "{message}: {answer:?}");
            assert!(answer.contains(message), "{message}: {answer:?}");
        }
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..100 {
            let noise: Vec<u8> = (0..rng.usize(0..64)).map(|_| rng.u8(..)).collect();
            let mechanism = ["SCRAM-SHA-256", "x"][rng.usize(0..2)];
            let bytes = [startup(0), initial(mechanism, &noise), frame(b'p', &noise)].concat();
            talk(address, bytes).await;
        }
        plain(address, "pangea", PASSWORD).await.unwrap();
    });
}
