//! Hand-written little-endian encoding for the most frequent data on the network and the disk.
//!
//! [`Writer`] appends to a buffer. [`Reader`] consumes a slice and never reads past its end.
//! Lengths are unsigned LEB128, so the many short strings of a batch need one byte each for their
//! length.

use std::fmt;

/// An error from decoding malformed bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// The kind of data that was being decoded, for humans.
    pub what: &'static str,
}

impl DecodeError {
    /// An error in decoding `what`.
    pub const fn new(what: &'static str) -> Self {
        Self { what }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed {}", self.what)
    }
}

impl std::error::Error for DecodeError {}

/// Appends values to a buffer.
pub trait Writer {
    /// Appends one byte.
    fn put_u8(&mut self, value: u8);
    /// Appends two bytes, little-endian.
    fn put_u16(&mut self, value: u16);
    /// Appends four bytes, little-endian.
    fn put_u32(&mut self, value: u32);
    /// Appends eight bytes, little-endian.
    fn put_u64(&mut self, value: u64);
    /// Appends an unsigned LEB128 number: one byte below 128, ten at most.
    fn put_varint(&mut self, value: u64);
    /// Appends a length and the bytes.
    fn put_bytes(&mut self, value: &[u8]);
}

impl Writer for Vec<u8> {
    #[inline]
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }
    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    #[inline]
    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }
    #[inline]
    fn put_bytes(&mut self, value: &[u8]) {
        self.put_varint(value.len() as u64);
        self.extend_from_slice(value);
    }
}

/// Decodes values from the front of a slice.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The bytes that have not been read.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether everything has been read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes `len` bytes.
    ///
    /// # Errors
    /// If fewer bytes are left.
    #[inline]
    pub fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::new(what))?;
        self.rest = rest;
        Ok(head)
    }

    #[inline]
    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::new(what))?;
        self.rest = rest;
        Ok(*head)
    }

    /// Takes one byte.
    ///
    /// # Errors
    /// If no byte is left.
    #[inline]
    pub fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    /// Takes two bytes, little-endian.
    ///
    /// # Errors
    /// If fewer bytes are left.
    #[inline]
    pub fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        self.array(what).map(u16::from_le_bytes)
    }

    /// Takes four bytes, little-endian.
    ///
    /// # Errors
    /// If fewer bytes are left.
    #[inline]
    pub fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// Takes eight bytes, little-endian.
    ///
    /// # Errors
    /// If fewer bytes are left.
    #[inline]
    pub fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Takes an unsigned LEB128 number.
    ///
    /// # Errors
    /// If the number does not end, or does not fit into 64 bits.
    #[inline]
    pub fn varint(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        // Fast path: most numbers fit into one byte.
        if let Some((&byte, rest)) = self.rest.split_first()
            && byte < 0x80
        {
            self.rest = rest;
            return Ok(byte.into());
        }
        self.long_varint(what)
    }

    fn long_varint(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8(what)?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::new(what))
    }

    /// Takes a length and that many bytes.
    ///
    /// # Errors
    /// If the length is malformed, or exceeds the number of bytes left.
    #[inline]
    pub fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let len = self.varint(what)?;
        self.take(usize::try_from(len).map_err(|_| DecodeError::new(what))?, what)
    }

    /// Takes a count of elements that each need at least one byte. A hostile count therefore cannot
    /// reserve more memory than was sent.
    ///
    /// # Errors
    /// If the count is malformed, or exceeds the number of bytes left.
    pub fn count(&mut self, what: &'static str) -> Result<usize, DecodeError> {
        let count = self.varint(what)?;
        match usize::try_from(count) {
            Ok(count) if count <= self.rest.len() => Ok(count),
            _ => Err(DecodeError::new(what)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(a: u8, b: u16, c: u32, d: u64, e: u64, f: Vec<u8>) {
            let mut buffer = Vec::new();
            buffer.put_u8(a);
            buffer.put_u16(b);
            buffer.put_u32(c);
            buffer.put_u64(d);
            buffer.put_varint(e);
            buffer.put_bytes(&f);
            let mut reader = Reader::new(&buffer);
            prop_assert_eq!(reader.u8("a").unwrap(), a);
            prop_assert_eq!(reader.u16("b").unwrap(), b);
            prop_assert_eq!(reader.u32("c").unwrap(), c);
            prop_assert_eq!(reader.u64("d").unwrap(), d);
            prop_assert_eq!(reader.varint("e").unwrap(), e);
            prop_assert_eq!(reader.bytes("f").unwrap(), &f[..]);
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes);
            while reader.varint("number").is_ok() && reader.bytes("string").is_ok() {}
        }
    }

    #[test]
    fn a_varint_longer_than_64_bits_is_refused() {
        assert!(Reader::new(&[0xff; 11]).varint("number").is_err());
        let mut top = [0x80; 10];
        top[9] = 2;
        assert!(Reader::new(&top).varint("number").is_err());
        top[9] = 1;
        assert_eq!(Reader::new(&top).varint("number"), Ok(1 << 63));
    }
}
