//! Hand-written messages of etcd's gRPC interface. The tags are those of `rpc.proto` and `kv.proto`
//! of etcd 3.4; fields that are not used are omitted.

/// Reads the keys from `key` up to `range_end`, exclusive.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RangeRequest {
    /// The first key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Empty for a single key.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// The maximum number of keys; 0 means no limit.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// The revision to read; 0 means the latest.
    #[prost(int64, tag = "4")]
    pub revision: i64,
    /// Whether the member answers from its local state, without asking the other members for the
    /// latest revision.
    #[prost(bool, tag = "7")]
    pub serializable: bool,
}

/// A key and its value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct KeyValue {
    /// The key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The number of puts since the key was created.
    #[prost(int64, tag = "4")]
    pub version: i64,
    /// The value.
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
}

/// The keys found.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RangeResponse {
    /// The member that answered, and its revision.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// The keys and values, in key order.
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    /// Whether more keys exist than the limit.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

/// The member that answered, and its revision.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Header {
    /// The member's id.
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
    /// The new value.
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

/// A transaction of several operations.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TxnRequest {
    /// The operations to execute if all comparisons succeed; there are no comparisons.
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
}

/// One operation of a transaction.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RequestOp {
    /// The operation.
    #[prost(oneof = "Op", tags = "1, 2, 3")]
    pub op: Option<Op>,
}

/// The kinds of operations.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Op {
    /// Reads keys.
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    /// Sets a key.
    #[prost(message, tag = "2")]
    Put(PutRequest),
    /// Removes a key.
    #[prost(message, tag = "3")]
    Delete(DeleteRequest),
}

/// The answers to the operations, in order.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TxnResponse {
    /// The member that answered, and its revision.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// One answer for each operation.
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

/// The answer to one operation.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ResponseOp {
    /// The keys found, if the operation is a read.
    #[prost(message, optional, tag = "1")]
    pub range: Option<RangeResponse>,
}

/// Requests a member's status.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct StatusRequest {}

/// A member's status.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct StatusResponse {
    /// The member that answered.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// The id of the leader; 0 if there is none.
    #[prost(uint64, tag = "4")]
    pub leader: u64,
}

/// Requests that the leader transfers leadership.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct MoveLeaderRequest {
    /// The id of the new leader.
    #[prost(uint64, tag = "1")]
    pub target_id: u64,
}

/// Confirms the transfer.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct MoveLeaderResponse {}
