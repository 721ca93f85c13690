//! A client of one etcd member.

use std::net::SocketAddr;

use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::wire::{
    MoveLeaderRequest, MoveLeaderResponse, RangeRequest, RangeResponse, RequestOp, StatusRequest,
    StatusResponse, TxnRequest, TxnResponse,
};
use crate::failure::Failure;

/// The flow-control window of answers, which many transactions on a connection share.
const WINDOW_LEN: u32 = 8 << 20;
/// The maximum length of an answer: a page of rows.
const ANSWER_LEN_MAX: usize = 64 << 20;

/// A connection to a member, for any number of concurrent calls.
#[derive(Clone, Debug)]
pub struct Client(Grpc<Channel>);

impl Client {
    /// Connects to a member's client address.
    ///
    /// # Errors
    /// When no member listens there.
    pub async fn connect(address: SocketAddr) -> Result<Self, Failure> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.expect("an address makes a URL");
        let endpoint = endpoint
            .tcp_nodelay(true)
            .initial_connection_window_size(WINDOW_LEN)
            .initial_stream_window_size(WINDOW_LEN);
        let channel = endpoint.connect().await;
        let cant = |error| Failure::failed(format!("can't connect to etcd at {address}"), error);
        Ok(Self(Grpc::new(channel.map_err(cant)?).max_decoding_message_size(ANSWER_LEN_MAX)))
    }

    async fn call<Q, A>(&mut self, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let ready = self.0.ready().await;
        // No request was sent.
        ready.map_err(|error| Status::new(Code::Unavailable, error.to_string()))?;
        let path = PathAndQuery::from_static(path);
        let answer = self.0.unary(Request::new(request), path, ProstCodec::default()).await;
        answer.map(tonic::Response::into_inner)
    }

    /// Executes all operations as one transaction.
    ///
    /// # Errors
    /// The member's error.
    pub async fn txn(&mut self, success: Vec<RequestOp>) -> Result<TxnResponse, Status> {
        self.call("/etcdserverpb.KV/Txn", TxnRequest { success }).await
    }

    /// Reads keys.
    ///
    /// # Errors
    /// The member's error.
    pub async fn range(&mut self, request: RangeRequest) -> Result<RangeResponse, Status> {
        self.call("/etcdserverpb.KV/Range", request).await
    }

    /// The member's status.
    ///
    /// # Errors
    /// The member's error.
    pub async fn status(&mut self) -> Result<StatusResponse, Status> {
        self.call("/etcdserverpb.Maintenance/Status", StatusRequest {}).await
    }

    /// Transfers leadership from this member to another.
    ///
    /// # Errors
    /// The member's error.
    pub async fn move_leader(&mut self, target_id: u64) -> Result<(), Status> {
        let request = MoveLeaderRequest { target_id };
        let path = "/etcdserverpb.Maintenance/MoveLeader";
        self.call::<_, MoveLeaderResponse>(path, request).await.map(drop)
    }
}
