//! Opens a client's session: its parameters, and a password if the server requests one.

use std::io;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::{AuthenticationSaslBody, Message};
use postgres_protocol::message::frontend;
use tokio_postgres::Config;

use super::client::{Client, refused, unexpected};

/// The `application_name` of the session.
const APPLICATION_NAME: &str = "pangea";

/// Opens a session, up to the point at which the server accepts the client.
///
/// # Errors
/// The server's reason if it does not.
pub async fn log_in(client: &mut Client, config: &Config) -> io::Result<()> {
    let own = std::env::var("USER");
    let user = config.get_user().map_or_else(|| own.unwrap_or_default(), str::to_owned);
    let mut parameters = vec![("client_encoding", "UTF8"), ("user", user.as_str())];
    parameters.extend(config.get_dbname().map(|name| ("database", name)));
    parameters.extend(config.get_options().map(|options| ("options", options)));
    let application = config.get_application_name().unwrap_or(APPLICATION_NAME);
    parameters.push(("application_name", application));
    let mut out = BytesMut::new();
    frontend::startup_message(parameters, &mut out)?;
    client.send(&out).await?;
    loop {
        let answer = match client.receive().await? {
            Message::AuthenticationOk => return Ok(()),
            Message::AuthenticationCleartextPassword => password(config)?.to_vec(),
            Message::AuthenticationMd5Password(body) => {
                md5_hash(user.as_bytes(), password(config)?, body.salt()).into_bytes()
            }
            Message::AuthenticationSasl(body) => {
                scram(client, &body, password(config)?).await?;
                continue;
            }
            Message::NoticeResponse(_) => continue,
            Message::ErrorResponse(error) => return Err(refused(&mut error.fields())),
            _ => {
                return Err(io::Error::other(
                    "the server requires an unsupported authentication method",
                ));
            }
        };
        let mut out = BytesMut::new();
        frontend::password_message(&answer, &mut out)?;
        client.send(&out).await?;
    }
}

fn password(config: &Config) -> io::Result<&[u8]> {
    let missing = || io::Error::other("the server requires a password, and the URL has none");
    config.get_password().ok_or_else(missing)
}

/// RFC 5802: each side proves that it knows the password, without sending it.
async fn scram(
    client: &mut Client,
    offered: &AuthenticationSaslBody,
    password: &[u8],
) -> io::Result<()> {
    if !offered.mechanisms().any(|name| Ok(name == SCRAM_SHA_256))? {
        return Err(io::Error::other("the server requires an unsupported authentication method"));
    }
    let mut scram = ScramSha256::new(password, ChannelBinding::unsupported());
    let mut out = BytesMut::new();
    frontend::sasl_initial_response(SCRAM_SHA_256, scram.message(), &mut out)?;
    client.send(&out).await?;
    match client.receive().await? {
        Message::AuthenticationSaslContinue(body) => scram.update(body.data())?,
        Message::ErrorResponse(error) => return Err(refused(&mut error.fields())),
        _ => return Err(unexpected()),
    }
    let mut out = BytesMut::new();
    frontend::sasl_response(scram.message(), &mut out)?;
    client.send(&out).await?;
    match client.receive().await? {
        Message::AuthenticationSaslFinal(body) => scram.finish(body.data()),
        Message::ErrorResponse(error) => Err(refused(&mut error.fields())),
        _ => Err(unexpected()),
    }
}
