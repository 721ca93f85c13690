//! A client of one member.

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

/// What may be on its way of answers: many transactions share a connection.
const WINDOW_LEN: u32 = 8 << 20;
/// An answer at most: a page of rows.
const ANSWER_LEN_MAX: usize = 64 << 20;

/// A connection to a member, for any number of calls at a time.
#[derive(Clone, Debug)]
pub struct Client(Grpc<Channel>);

impl Client {
    /// Connects to a member's address for clients.
    ///
    /// # Errors
    /// When nobody listens there.
    pub async fn connect(address: SocketAddr) -> Result<Self, Failure> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.expect("an address makes an URL");
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
        // Nothing was sent.
        ready.map_err(|error| Status::new(Code::Unavailable, error.to_string()))?;
        let path = PathAndQuery::from_static(path);
        let answer = self.0.unary(Request::new(request), path, ProstCodec::default()).await;
        answer.map(tonic::Response::into_inner)
    }

    /// Does all operations at once.
    ///
    /// # Errors
    /// The member's.
    pub async fn txn(&mut self, success: Vec<RequestOp>) -> Result<TxnResponse, Status> {
        self.call("/etcdserverpb.KV/Txn", TxnRequest { success }).await
    }

    /// Reads keys.
    ///
    /// # Errors
    /// The member's.
    pub async fn range(&mut self, request: RangeRequest) -> Result<RangeResponse, Status> {
        self.call("/etcdserverpb.KV/Range", request).await
    }

    /// How the member is.
    ///
    /// # Errors
    /// The member's.
    pub async fn status(&mut self) -> Result<StatusResponse, Status> {
        self.call("/etcdserverpb.Maintenance/Status", StatusRequest {}).await
    }

    /// Has another member lead. This one leads.
    ///
    /// # Errors
    /// The member's.
    pub async fn move_leader(&mut self, target_id: u64) -> Result<(), Status> {
        let request = MoveLeaderRequest { target_id };
        let path = "/etcdserverpb.Maintenance/MoveLeader";
        self.call::<_, MoveLeaderResponse>(path, request).await.map(drop)
    }
}
