//! Tables of messages: one line for each message says its tag, its fields with their codecs, its
//! lane, its kind and the mark that counts a refusal.
//!
//! [`messages!`](crate::messages::messages) makes the enum and its [`Message`] from the table. A
//! message is its tag, one byte, and then its fields in order. Tags and the order of fields are the
//! format on the wire.
//!
//! ```text
//!   4 => Fetch { source: NodeId, from: Bid, upto: Bid }
//!        control "message_other", malformed "streams.malformed_fetch" unless (from <= upto)
//! ```
//!
//! | part | meaning |
//! |---|---|
//! | `field: Type` | the field has the codec of its type; `as Codec` names another one |
//! | `control`, `bulk`, `sized` | the lane: `sized` is control up to [`CONTROL_MAX`], else bulk |
//! | `"message_other"` | the kind under which costs are measured: see [`Message::KINDS`] |
//! | `malformed "mark"` | the mark of a message with a field that makes no sense |
//! | `unless (..)` | a condition over the fields that a message must meet, too |
//!
//! [`Message`]: pangea_core::protocol::Message
//! [`Message::KINDS`]: pangea_core::protocol::Message::KINDS

use std::marker::PhantomData;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion};

/// A message on the lane `sized` with more payload than this takes the bulk lane.
pub(crate) const CONTROL_MAX: usize = 64 << 10;

/// No batch, epoch or proposal has a number above this, so that one can be added to any of them.
/// Local transactions end here too, and a batch contains at least one.
pub(crate) const NUMBER_MAX: u64 = 1 << 48;

/// How a field is written.
pub(crate) trait Codec {
    /// The type of the field.
    type Value;

    /// Appends the value to `out`.
    fn encode(value: &Self::Value, out: &mut Vec<u8>);

    /// Reads the value. May keep slices of `message`, of which `from` is a part.
    ///
    /// # Errors
    /// When the bytes are malformed. `what` names the message.
    fn decode(
        from: &mut Reader<'_>,
        message: &Bytes,
        what: &'static str,
    ) -> Result<Self::Value, DecodeError>;

    /// Whether a replica of a group of `node_count` can have sent this value.
    fn is_sound(_value: &Self::Value, _node_count: usize) -> bool {
        true
    }

    /// The bytes of payload that the value carries, if the cost of the message grows with it.
    fn payload_bytes(_value: &Self::Value) -> usize {
        0
    }
}

/// A number of any size, as a varint.
pub(crate) struct Varint;

impl Codec for Varint {
    type Value = u64;

    fn encode(value: &u64, out: &mut Vec<u8>) {
        out.put_varint(*value);
    }

    fn decode(from: &mut Reader<'_>, _: &Bytes, what: &'static str) -> Result<u64, DecodeError> {
        from.varint(what)
    }
}

/// A number up to [`NUMBER_MAX`], as a varint.
pub(crate) struct Number;

impl Codec for Number {
    type Value = u64;

    fn encode(value: &u64, out: &mut Vec<u8>) {
        Varint::encode(value, out);
    }

    fn decode(
        from: &mut Reader<'_>,
        message: &Bytes,
        what: &'static str,
    ) -> Result<u64, DecodeError> {
        Varint::decode(from, message, what)
    }

    fn is_sound(value: &u64, _: usize) -> bool {
        *value <= NUMBER_MAX
    }
}

/// A random number, in eight bytes.
pub(crate) struct Random;

impl Codec for Random {
    type Value = u64;

    fn encode(value: &u64, out: &mut Vec<u8>) {
        out.put_u64(*value);
    }

    fn decode(from: &mut Reader<'_>, _: &Bytes, what: &'static str) -> Result<u64, DecodeError> {
        from.u64(what)
    }
}

/// A random number that is not zero, in eight bytes.
pub(crate) struct NonZero;

impl Codec for NonZero {
    type Value = u64;

    fn encode(value: &u64, out: &mut Vec<u8>) {
        Random::encode(value, out);
    }

    fn decode(
        from: &mut Reader<'_>,
        message: &Bytes,
        what: &'static str,
    ) -> Result<u64, DecodeError> {
        Random::decode(from, message, what)
    }

    fn is_sound(value: &u64, _: usize) -> bool {
        *value != 0
    }
}

/// A value that is refused where it is read if it makes no sense, and not where it is handled.
pub(crate) struct Strict<C>(PhantomData<C>);

impl<C: Codec> Codec for Strict<C> {
    type Value = C::Value;

    fn encode(value: &C::Value, out: &mut Vec<u8>) {
        C::encode(value, out);
    }

    fn decode(
        from: &mut Reader<'_>,
        message: &Bytes,
        what: &'static str,
    ) -> Result<C::Value, DecodeError> {
        let value = C::decode(from, message, what)?;
        if C::is_sound(&value, usize::MAX) { Ok(value) } else { Err(DecodeError::new(what)) }
    }
}

/// A list with its length before it.
impl<C: Codec> Codec for Vec<C> {
    type Value = Vec<C::Value>;

    fn encode(values: &Vec<C::Value>, out: &mut Vec<u8>) {
        out.put_varint(values.len() as u64);
        values.iter().for_each(|value| C::encode(value, out));
    }

    fn decode(
        from: &mut Reader<'_>,
        message: &Bytes,
        what: &'static str,
    ) -> Result<Vec<C::Value>, DecodeError> {
        (0..from.count(what)?).map(|_| C::decode(from, message, what)).collect()
    }

    fn is_sound(values: &Vec<C::Value>, node_count: usize) -> bool {
        values.iter().all(|value| C::is_sound(value, node_count))
    }

    fn payload_bytes(values: &Vec<C::Value>) -> usize {
        values.iter().map(|value| C::payload_bytes(value)).sum()
    }
}

/// One value after the other.
impl<A: Codec, B: Codec> Codec for (A, B) {
    type Value = (A::Value, B::Value);

    fn encode((a, b): &(A::Value, B::Value), out: &mut Vec<u8>) {
        A::encode(a, out);
        B::encode(b, out);
    }

    fn decode(
        from: &mut Reader<'_>,
        message: &Bytes,
        what: &'static str,
    ) -> Result<(A::Value, B::Value), DecodeError> {
        Ok((A::decode(from, message, what)?, B::decode(from, message, what)?))
    }

    fn is_sound((a, b): &(A::Value, B::Value), node_count: usize) -> bool {
        A::is_sound(a, node_count) && B::is_sound(b, node_count)
    }
}

/// The rest of the message, which is its payload.
impl Codec for Bytes {
    type Value = Bytes;

    fn encode(value: &Bytes, out: &mut Vec<u8>) {
        out.extend_from_slice(value);
    }

    fn decode(
        from: &mut Reader<'_>,
        message: &Bytes,
        what: &'static str,
    ) -> Result<Bytes, DecodeError> {
        let rest = from.take(from.rest().len(), what)?;
        Ok(message.slice_ref(rest))
    }

    fn payload_bytes(value: &Bytes) -> usize {
        value.len()
    }
}

/// The rest of the message, which does not count as payload.
pub(crate) struct Uncounted;

impl Codec for Uncounted {
    type Value = Bytes;

    fn encode(value: &Bytes, out: &mut Vec<u8>) {
        Bytes::encode(value, out);
    }

    fn decode(
        from: &mut Reader<'_>,
        message: &Bytes,
        what: &'static str,
    ) -> Result<Bytes, DecodeError> {
        Bytes::decode(from, message, what)
    }
}

/// A flag, as a varint: 1 if it is set.
impl Codec for bool {
    type Value = bool;

    fn encode(value: &bool, out: &mut Vec<u8>) {
        out.put_varint(u64::from(*value));
    }

    fn decode(from: &mut Reader<'_>, _: &Bytes, what: &'static str) -> Result<bool, DecodeError> {
        Ok(from.varint(what)? == 1)
    }
}

impl Codec for NodeId {
    type Value = NodeId;

    fn encode(value: &NodeId, out: &mut Vec<u8>) {
        out.put_u16(value.0);
    }

    fn decode(from: &mut Reader<'_>, _: &Bytes, what: &'static str) -> Result<NodeId, DecodeError> {
        from.u16(what).map(NodeId)
    }

    fn is_sound(value: &NodeId, node_count: usize) -> bool {
        value.index() < node_count
    }
}

impl Codec for SnapshotVersion {
    type Value = SnapshotVersion;

    fn encode(value: &SnapshotVersion, out: &mut Vec<u8>) {
        out.put_varint(value.0);
    }

    fn decode(
        from: &mut Reader<'_>,
        _: &Bytes,
        what: &'static str,
    ) -> Result<SnapshotVersion, DecodeError> {
        from.varint(what).map(SnapshotVersion)
    }

    fn is_sound(value: &SnapshotVersion, _: usize) -> bool {
        value.0 <= NUMBER_MAX
    }
}

/// A value of any size, also one that makes no sense.
pub(crate) struct Unchecked<C>(PhantomData<C>);

impl<C: Codec> Codec for Unchecked<C> {
    type Value = C::Value;

    fn encode(value: &C::Value, out: &mut Vec<u8>) {
        C::encode(value, out);
    }

    fn decode(
        from: &mut Reader<'_>,
        message: &Bytes,
        what: &'static str,
    ) -> Result<C::Value, DecodeError> {
        C::decode(from, message, what)
    }
}

/// The lane of a message, by the word in the table.
macro_rules! lane {
    (control, $message:expr) => {
        pangea_core::protocol::Lane::Control
    };
    (bulk, $message:expr) => {
        pangea_core::protocol::Lane::Bulk
    };
    (sized, $message:expr) => {
        match $message.payload_bytes() > $crate::messages::CONTROL_MAX {
            true => pangea_core::protocol::Lane::Bulk,
            false => pangea_core::protocol::Lane::Control,
        }
    };
}

/// Names the codec of a field.
macro_rules! codec {
    ($ty:ty) => {
        $ty
    };
    ($ty:ty, $codec:ty) => {
        $codec
    };
}

/// Calls a function of the codec of a field.
macro_rules! with_codec {
    ([$($codec:tt)*], $function:ident, $($argument:expr),*) => {
        <$crate::messages::codec!($($codec)*) as $crate::messages::Codec>::$function($($argument),*)
    };
}

/// Whether a tag is one of these.
pub(crate) const fn is_among(tag: u8, tags: &[u8]) -> bool {
    let mut at = 0;
    while at < tags.len() {
        if tags[at] == tag {
            return true;
        }
        at += 1;
    }
    false
}

/// Makes an enum of messages, its codec, and the facts about each message from a table.
macro_rules! messages {
    (
        $(#[$meta:meta])*
        pub enum $message:ident
        $(wraps $wrapper:ident($wrapped:ty $(: $($inner:ty),+)?), $wrapper_doc:literal)*
        {
            $(
                $(#[$doc:meta])*
                $tag:literal => $name:ident {
                    $($(#[$field_doc:meta])* $field:ident: $ty:ty $(as $codec:ty)?),* $(,)?
                } $lane:ident $kind:literal
                $(, malformed $mark:literal $(unless ($sense:expr))?)?;
            )*
        }
        kinds $kinds:expr;
    ) => {
        $(#[$meta])*
        pub enum $message {
            $(#[doc = $wrapper_doc] $wrapper($wrapped),)*
            $($(#[$doc])* $name { $($(#[$field_doc])* $field: $ty),* },)*
        }

        $(
            impl From<$wrapped> for $message {
                fn from(message: $wrapped) -> Self {
                    Self::$wrapper(message)
                }
            }

            $($(
                impl From<$inner> for $message {
                    fn from(message: $inner) -> Self {
                        Self::$wrapper(message.into())
                    }
                }
            )+)?
        )*

        impl pangea_core::protocol::Message for $message {
            const KINDS: &'static [&'static str] = $kinds;

            fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$wrapper(message) => {
                        <$wrapped as pangea_core::protocol::Message>::encode(message, out);
                    })*
                    $(Self::$name { $($field),* } => {
                        out.push($tag);
                        $($crate::messages::with_codec!(
                            [$ty $(, $codec)?], encode, $field, out
                        );)*
                    })*
                }
            }

            #[allow(
                unreachable_code,
                unused_variables,
                reason = "an enum may have no messages of its own"
            )]
            fn decode(
                bytes: &bytes::Bytes,
            ) -> Result<Self, pangea_core::codec::DecodeError> {
                let mut reader = pangea_core::codec::Reader::new(bytes);
                let from = &mut reader;
                let tag = from.u8("message")?;
                $(if <$wrapped>::has_tag(tag) {
                    return <$wrapped as pangea_core::protocol::Message>::decode(bytes)
                        .map(Self::$wrapper);
                })*
                let message = match tag {
                    $($tag => Self::$name {
                        $($field: $crate::messages::with_codec!(
                            [$ty $(, $codec)?], decode, from, bytes, stringify!($name)
                        )?),*
                    },)*
                    _ => return Err(pangea_core::codec::DecodeError::new("message tag")),
                };
                match from.is_empty() {
                    true => Ok(message),
                    false => Err(pangea_core::codec::DecodeError::new("message")),
                }
            }

            fn lane(&self) -> pangea_core::protocol::Lane {
                match self {
                    $(Self::$wrapper(message) => message.lane(),)*
                    $(Self::$name { .. } => $crate::messages::lane!($lane, self),)*
                }
            }

            fn kind(&self) -> &'static str {
                match self {
                    $(Self::$wrapper(message) => message.kind(),)*
                    $(Self::$name { .. } => $kind,)*
                }
            }

            fn payload_bytes(&self) -> usize {
                match self {
                    $(Self::$wrapper(message) => message.payload_bytes(),)*
                    $(Self::$name { $($field),* } => {
                        0 $(+ $crate::messages::with_codec!(
                            [$ty $(, $codec)?], payload_bytes, $field
                        ))*
                    })*
                }
            }
        }

        // Each tag names one message.
        const _: () = {
            let mut tag = 0;
            while tag < u8::MAX {
                let uses = $crate::messages::is_among(tag, &[$($tag),*]) as u8
                    $(+ <$wrapped>::has_tag(tag) as u8)*;
                assert!(uses <= 1, "two messages have the same tag");
                assert!(<$message>::has_tag(tag) == (uses == 1), "it is in this enum");
                tag += 1;
            }
        };

        impl $message {
            /// Whether a message with this tag is one of these.
            pub(crate) const fn has_tag(tag: u8) -> bool {
                $crate::messages::is_among(tag, &[$($tag),*]) $(|| <$wrapped>::has_tag(tag))*
            }

            /// Whether a replica of a group of `node_count` can have sent this. The contents of a
            /// payload are checked where they are decoded.
            ///
            /// # Errors
            /// The mark under which the refusal is counted.
            #[allow(unused_variables, dead_code, reason = "not all messages have checks")]
            pub(crate) fn check(&self, node_count: usize) -> Result<(), &'static str> {
                match self {
                    $(Self::$wrapper(message) => message.check(node_count),)*
                    $(Self::$name { $($field),* } => {
                        let are_sound = true $(&& $crate::messages::with_codec!(
                            [$ty $(, $codec)?], is_sound, $field, node_count
                        ))*;
                        $(
                            if !(are_sound $(&& $sense)?) {
                                return Err($mark);
                            }
                        )?
                        Ok(())
                    })*
                }
            }
        }
    };
}

pub(crate) use {codec, lane, messages, with_codec};
