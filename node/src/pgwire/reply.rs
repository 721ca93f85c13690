//! Encoding of replies: the session's answers as the crate's messages, and those as bytes.

use ::pgwire::messages::Message;
use ::pgwire::messages::ProtocolVersion;
use ::pgwire::messages::copy::MESSAGE_TYPE_BYTE_COPY_DATA;
use ::pgwire::messages::data::{
    DataRow, FORMAT_CODE_BINARY, FORMAT_CODE_TEXT, FieldDescription, ParameterDescription,
    RowDescription,
};
use ::pgwire::messages::response::{
    CommandComplete, ErrorResponse, NoticeResponse, ReadyForQuery, SslResponse,
    TransactionStatus as Status,
};
use ::pgwire::messages::startup::{
    Authentication, BackendKeyData, NegotiateProtocolVersion, ParameterStatus, SecretKey,
};
use bytes::{BufMut, BytesMut};
use pangea_sql::OutputColumn;
use pangea_sql::error::{SqlError, code};
use pangea_sql::notice::Notice;
use pangea_sql::session::TransactionStatus;
use pangea_sql::types::datum::Datum;
use pangea_sql::types::zone::Zone;
use pangea_sql::types::{SqlType, binary, text};

/// The maximum length of a reply that is not a row, an error or a notice. libpq regards a
/// connection with a longer one as broken.
const SMALL_REPLY_BYTES_MAX: usize = 30_000;
/// The maximum length of a row. Its length field is an `i32` that includes itself and the number of
/// values.
const ROW_BYTES_MAX: usize = i32::MAX as usize - 6;

/// Encoded replies that have not been sent.
#[derive(Debug, Default)]
pub(super) struct Replies {
    bytes: BytesMut,
    /// Buffers for a row's values and for one value, reused between rows.
    row: BytesMut,
    value: Vec<u8>,
}

/// The severity of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// The statement failed.
    Error,
    /// The connection ends.
    Fatal,
}

impl Replies {
    /// The buffered bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Discards the bytes, which have been sent.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Appends a message. Encoding one that is too long for its type would leave a partial message,
    /// so the few that could be too long are checked beforehand.
    pub(super) fn put(&mut self, message: impl Message) {
        message.encode(&mut self.bytes).expect("a reply does not exceed the limits of its type");
    }

    /// The answer to a request for encryption.
    pub(super) fn encryption(&mut self, is_granted: bool) {
        self.put(if is_granted { SslResponse::Accept } else { SslResponse::Refuse });
    }

    pub(super) fn authenticated(&mut self) {
        self.put(Authentication::Ok);
    }

    /// The newest supported version, and the unknown options.
    pub(super) fn negotiate(&mut self, unknown: Vec<String>) {
        // The full version number, as PostgreSQL sends it and libpq accepts it.
        let newest = ProtocolVersion::PROTOCOL3_0.into();
        self.put(NegotiateProtocolVersion::new(newest, unknown));
    }

    /// Reports a setting. A value that is too long for clients is not reported.
    pub(super) fn parameter(&mut self, name: &str, value: &str) {
        let status = ParameterStatus::new(without_zeros(name), without_zeros(value));
        if status.message_length() <= SMALL_REPLY_BYTES_MAX {
            self.put(status);
        }
    }

    pub(super) fn backend_key(&mut self, process: i32, secret: i32) {
        self.put(BackendKeyData::new(process, SecretKey::I32(secret)));
    }

    pub(super) fn ready(&mut self, status: TransactionStatus) {
        self.put(ReadyForQuery::new(match status {
            TransactionStatus::Idle => Status::Idle,
            TransactionStatus::Active => Status::Transaction,
            TransactionStatus::Failed => Status::Error,
        }));
    }

    pub(super) fn complete(&mut self, tag: &str) {
        self.put(CommandComplete::new(tag.to_owned()));
    }

    pub(super) fn error(&mut self, severity: Severity, error: &SqlError) {
        let severity = match severity {
            Severity::Error => "ERROR",
            Severity::Fatal => "FATAL",
        };
        let mut fields = fields(severity, error.code.as_str(), &error.message);
        fields.extend(error.detail.iter().map(|detail| (b'D', without_zeros(detail))));
        fields.extend(error.hint.iter().map(|hint| (b'H', without_zeros(hint))));
        if let Some(violated) = &error.violated {
            fields.push((b's', without_zeros(&violated.schema)));
            fields.push((b't', without_zeros(&violated.table)));
            fields.extend(violated.column.iter().map(|name| (b'c', without_zeros(name))));
            fields.extend(violated.constraint.iter().map(|name| (b'n', without_zeros(name))));
        }
        fields.extend(error.context.iter().map(|context| (b'W', without_zeros(context))));
        fields.extend(error.position.iter().map(|at| (b'P', at.to_string())));
        self.put(ErrorResponse::new(fields));
    }

    pub(super) fn notice(&mut self, notice: &Notice) {
        let severity = notice.severity.to_string();
        let mut fields = fields(&severity, notice.code.as_str(), &notice.message);
        fields.extend(notice.detail.iter().map(|detail| (b'D', without_zeros(detail))));
        fields.extend(notice.hint.iter().map(|hint| (b'H', without_zeros(hint))));
        self.put(NoticeResponse::new(fields));
    }

    /// Sends a warning with a hint.
    pub(super) fn warning(&mut self, message: &str, hint: &str) {
        let mut fields = fields("WARNING", "01000", message);
        fields.push((b'H', without_zeros(hint)));
        self.put(NoticeResponse::new(fields));
    }

    pub(super) fn parameter_types(&mut self, types: &[SqlType]) {
        self.put(ParameterDescription::new(types.iter().map(|base| base.oid()).collect()));
    }

    /// Describes the columns of the rows that follow, and which of them are in binary format.
    pub(super) fn row_description(&mut self, columns: &[OutputColumn], formats: &[bool]) {
        let described = columns.iter().enumerate().map(|(at, column)| {
            let is_binary = formats.get(at).copied().unwrap_or(false);
            FieldDescription::new(
                without_zeros(&column.name),
                // 0 if the column is computed.
                column.origin.map_or(0, |origin| origin.relation as i32),
                column.origin.map_or(0, |origin| origin.column),
                column.ty.base.oid(),
                column.ty.base.wire_len(),
                column.ty.modifier,
                if is_binary { FORMAT_CODE_BINARY } else { FORMAT_CODE_TEXT },
            )
        });
        self.put(RowDescription::new(described.collect()));
    }

    /// Appends data of a COPY, which is within the limits of a row.
    pub(super) fn copy_data(&mut self, data: &[u8]) {
        self.bytes.put_u8(MESSAGE_TYPE_BYTE_COPY_DATA);
        self.bytes.put_i32(data.len() as i32 + 4);
        self.bytes.put_slice(data);
    }

    /// Appends a row.
    ///
    /// # Errors
    /// When it exceeds the maximum length of a row.
    pub(super) fn row(
        &mut self,
        row: &[Datum],
        columns: &[OutputColumn],
        formats: &[bool],
        zone: &Zone,
    ) -> Result<(), SqlError> {
        assert_eq!(row.len(), columns.len(), "a row has a value for each column");
        let mut values = std::mem::take(&mut self.row);
        values.clear();
        for (at, (datum, column)) in row.iter().zip(columns).enumerate() {
            if datum.is_null() {
                values.put_i32(-1);
                continue;
            }
            self.value.clear();
            if formats.get(at).copied().unwrap_or(false) {
                binary::encode(column.ty.base, datum, &mut self.value);
            } else {
                let text = text::format(column.ty.base, datum, zone);
                self.value.extend_from_slice(text.as_bytes());
            }
            if values.len() + self.value.len() + 4 > ROW_BYTES_MAX {
                return Err(SqlError::new(code::LIMIT_EXCEEDED, "a row of the result is too long"));
            }
            values.put_i32(self.value.len() as i32);
            values.put_slice(&self.value);
        }
        let row = DataRow::new(values, row.len() as i16);
        row.encode(&mut self.bytes).expect("the row was measured before");
        self.row = row.data;
        Ok(())
    }
}

/// The fields that errors and notices have in common.
fn fields(severity: &str, code: &str, message: &str) -> Vec<(u8, String)> {
    vec![
        (b'S', severity.to_owned()),
        (b'V', severity.to_owned()),
        (b'C', code.to_owned()),
        (b'M', without_zeros(message)),
    ]
}

/// Removes zero bytes, which would end a string of the protocol early.
fn without_zeros(text: &str) -> String {
    if text.contains('\0') { text.replace('\0', "") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_have_their_lengths() {
        let mut replies = Replies::default();
        replies.complete("OK");
        assert_eq!(replies.bytes(), b"C\0\0\0\x07OK\0");
        replies.clear();
        let column = OutputColumn::new("a", SqlType::Int4);
        let row = [Datum::Int(7), Datum::Null];
        let columns = [column.clone(), column];
        replies.row(&row, &columns, &[true, true], &Zone::default()).unwrap();
        assert_eq!(replies.bytes(), b"D\0\0\0\x12\0\x02\0\0\0\x04\0\0\0\x07\xff\xff\xff\xff");
    }

    #[test]
    fn no_reply_ends_early_or_is_cut() {
        let mut replies = Replies::default();
        replies.parameter("a\0", "b\0c");
        assert_eq!(replies.bytes(), b"S\0\0\0\x09a\0bc\0");
        replies.clear();
        let longest = "x".repeat(SMALL_REPLY_BYTES_MAX - 7);
        replies.parameter("a", &longest);
        assert_eq!(replies.bytes().len(), SMALL_REPLY_BYTES_MAX + 1);
        replies.clear();
        replies.parameter("a", &(longest + "x"));
        assert!(replies.bytes().is_empty(), "a reply that libpq would refuse is not sent");
    }
}
