//! The messages of etcd's gRPC interface that are used here, by hand: the numbers are those of
//! `rpc.proto` and `kv.proto` of etcd 3.4. What is left out is not read.

/// Keys and their values, from `key` up to but without `range_end`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RangeRequest {
    /// The first key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Empty for one key.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// How many at most, 0 for all.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// As of which revision, 0 for the latest.
    #[prost(int64, tag = "4")]
    pub revision: i64,
    /// Whether the member answers by itself, without asking the others what the latest is.
    #[prost(bool, tag = "7")]
    pub serializable: bool,
}

/// One key and its value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct KeyValue {
    /// The key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// How often it was put since it was made.
    #[prost(int64, tag = "4")]
    pub version: i64,
    /// The value.
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
}

/// What was found.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RangeResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// In the order of their keys.
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    /// Whether there are more than the limit.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

/// Who answered, and when.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Header {
    /// The member's number.
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    /// The store's revision.
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// Sets a key.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutRequest {
    /// The key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// What it is then.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// Removes a key.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeleteRequest {
    /// The key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
}

/// Operations that are done at once.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TxnRequest {
    /// What is done where all comparisons hold; there are none.
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
}

/// One operation of a transaction.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RequestOp {
    /// Which.
    #[prost(oneof = "Op", tags = "1, 2, 3")]
    pub op: Option<Op>,
}

/// What an operation is.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Op {
    /// Reads.
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    /// Sets.
    #[prost(message, tag = "2")]
    Put(PutRequest),
    /// Removes.
    #[prost(message, tag = "3")]
    Delete(DeleteRequest),
}

/// What the operations answered, in their order.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TxnResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// One for each.
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

/// What one operation answered.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ResponseOp {
    /// What was found, of one that reads.
    #[prost(message, optional, tag = "1")]
    pub range: Option<RangeResponse>,
}

/// Asks a member how it is.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct StatusRequest {}

/// How a member is.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct StatusResponse {
    /// Who answered.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// Which member leads, 0 for none.
    #[prost(uint64, tag = "4")]
    pub leader: u64,
}

/// Asks the leader to have another lead.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct MoveLeaderRequest {
    /// Which member.
    #[prost(uint64, tag = "1")]
    pub target_id: u64,
}

/// That it has.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct MoveLeaderResponse {}
