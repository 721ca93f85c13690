//! The hexadecimal format of bytes in files.

use std::fmt::Write;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

pub fn of(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn read(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}

pub fn serialize<S: Serializer>(starts: &[Vec<u8>], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(starts.iter().map(|start| of(start)))
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Vec<u8>>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    let start = |text: String| {
        read(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is not hexadecimal")))
    };
    texts.into_iter().map(start).collect()
}
