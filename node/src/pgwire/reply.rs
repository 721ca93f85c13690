//! What clients are told.

use pangea_sql::OutputColumn;
use pangea_sql::error::SqlError;
use pangea_sql::session::TransactionStatus;
use pangea_sql::types::datum::Datum;
use pangea_sql::types::zone::Zone;
use pangea_sql::types::{SqlType, binary, text};

/// Replies that have not been sent, as bytes.
#[derive(Debug, Default)]
pub(super) struct Replies {
    bytes: Vec<u8>,
}

/// How bad an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// The statement failed.
    Error,
    /// The connection ends.
    Fatal,
}

impl Replies {
    /// The bytes so far.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets what was sent.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    fn put(&mut self, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
        self.bytes.push(kind);
        let start = self.bytes.len();
        self.bytes.extend([0; 4]);
        body(&mut self.bytes);
        let len = u32::try_from(self.bytes.len() - start).expect("a reply is below 4 GB");
        self.bytes[start..start + 4].copy_from_slice(&len.to_be_bytes());
    }

    /// No, to a request for encryption.
    pub(super) fn no_encryption(&mut self) {
        self.bytes.push(b'N');
    }

    /// A message without content: `1` parsed, `2` bound, `3` closed, `I` empty, `n` no rows, `s`
    /// suspended.
    pub(super) fn signal(&mut self, kind: u8) {
        assert!(b"123Ins".contains(&kind), "these have no content");
        self.put(kind, |_| {});
    }

    pub(super) fn authenticated(&mut self) {
        self.put(b'R', |out| out.extend(0u32.to_be_bytes()));
    }

    /// The newest minor version that is spoken here, and the options that are not understood.
    pub(super) fn negotiate(&mut self, unknown: &[&str]) {
        self.put(b'v', |out| {
            out.extend(0u32.to_be_bytes());
            out.extend((unknown.len() as u32).to_be_bytes());
            unknown.iter().for_each(|name| put_text(name, out));
        });
    }

    pub(super) fn parameter(&mut self, name: &str, value: &str) {
        self.put(b'S', |out| {
            put_text(name, out);
            put_text(value, out);
        });
    }

    pub(super) fn backend_key(&mut self, process: i32, secret: u32) {
        self.put(b'K', |out| {
            out.extend(process.to_be_bytes());
            out.extend(secret.to_be_bytes());
        });
    }

    pub(super) fn ready(&mut self, status: TransactionStatus) {
        let letter = match status {
            TransactionStatus::Idle => b'I',
            TransactionStatus::Active => b'T',
            TransactionStatus::Failed => b'E',
        };
        self.put(b'Z', |out| out.push(letter));
    }

    pub(super) fn complete(&mut self, tag: &str) {
        self.put(b'C', |out| put_text(tag, out));
    }

    pub(super) fn error(&mut self, severity: Severity, error: &SqlError) {
        let severity = match severity {
            Severity::Error => "ERROR",
            Severity::Fatal => "FATAL",
        };
        self.put(b'E', |out| {
            put_field(b'S', severity, out);
            put_field(b'V', severity, out);
            put_field(b'C', error.code.as_str(), out);
            put_field(b'M', &error.message, out);
            error.detail.iter().for_each(|detail| put_field(b'D', detail, out));
            error.hint.iter().for_each(|hint| put_field(b'H', hint, out));
            error.position.iter().for_each(|at| put_field(b'P', &at.to_string(), out));
            out.push(0);
        });
    }

    pub(super) fn notice(&mut self, message: &str) {
        self.put(b'N', |out| {
            put_field(b'S', "NOTICE", out);
            put_field(b'V', "NOTICE", out);
            put_field(b'C', "00000", out);
            put_field(b'M', message, out);
            out.push(0);
        });
    }

    pub(super) fn parameter_types(&mut self, types: &[SqlType]) {
        self.put(b't', |out| {
            out.extend((types.len() as u16).to_be_bytes());
            types.iter().for_each(|base| out.extend(base.oid().to_be_bytes()));
        });
    }

    /// The columns of the rows that follow, and which of them come in binary.
    pub(super) fn row_description(&mut self, columns: &[OutputColumn], formats: &[bool]) {
        self.put(b'T', |out| {
            out.extend((columns.len() as u16).to_be_bytes());
            for (at, column) in columns.iter().enumerate() {
                put_text(&column.name, out);
                // No table and no column of one: results are not traced back to them.
                out.extend([0; 6]);
                out.extend(column.ty.base.oid().to_be_bytes());
                out.extend(column.ty.base.wire_len().to_be_bytes());
                out.extend(column.ty.modifier.to_be_bytes());
                let is_binary = formats.get(at).copied().unwrap_or(false);
                out.extend(u16::from(is_binary).to_be_bytes());
            }
        });
    }

    pub(super) fn row(
        &mut self,
        row: &[Datum],
        columns: &[OutputColumn],
        formats: &[bool],
        zone: &Zone,
    ) {
        self.put(b'D', |out| {
            out.extend((row.len() as u16).to_be_bytes());
            for (at, (datum, column)) in row.iter().zip(columns).enumerate() {
                if datum.is_null() {
                    out.extend((-1i32).to_be_bytes());
                    continue;
                }
                let start = out.len();
                out.extend([0; 4]);
                if formats.get(at).copied().unwrap_or(false) {
                    binary::encode(column.ty.base, datum, out);
                } else {
                    out.extend(text::format(column.ty.base, datum, zone).as_bytes());
                }
                let len = u32::try_from(out.len() - start - 4).expect("a value is below 4 GB");
                out[start..start + 4].copy_from_slice(&len.to_be_bytes());
            }
        });
    }
}

/// A string and the zero that ends it; a zero inside would end it early.
fn put_text(text: &str, out: &mut Vec<u8>) {
    out.extend(text.bytes().filter(|&byte| byte != 0));
    out.push(0);
}

fn put_field(kind: u8, text: &str, out: &mut Vec<u8>) {
    out.push(kind);
    put_text(text, out);
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
        let column = OutputColumn { name: "a".to_owned(), ty: SqlType::Int4.into() };
        let row = [Datum::Int(7), Datum::Null];
        let columns = [column.clone(), column];
        replies.row(&row, &columns, &[true, true], &Zone::default());
        assert_eq!(replies.bytes(), b"D\0\0\0\x12\0\x02\0\0\0\x04\0\0\0\x07\xff\xff\xff\xff");
    }
}
