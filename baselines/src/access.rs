//! Clients' access to the database from a place.
//!
//! A session belongs to the thread that opens it: its socket is in that thread's network namespace,
//! and it is driven by a task of that thread's runtime. Therefore sessions are not passed between
//! threads, but the means to open one are.

use std::net::SocketAddr;
use std::sync::Arc;

use pangea_core::workload::Workload;
use tokio_postgres::Config;

use crate::failure::Failure;
use crate::retries::Retries;
use crate::session::{Session, Way};
use crate::{etcd, galera, postgres};

/// Opens sessions for a place's clients, at first and after they have lost one.
#[derive(Clone, Debug)]
pub struct Access {
    access_point: AccessPoint,
    workload: Workload,
    retries: Retries,
}

#[derive(Clone, Debug)]
pub(crate) enum AccessPoint {
    /// The place's own master.
    Galera(SocketAddr),
    /// The primary, wherever it is.
    Postgres(Box<Config>),
    /// The place's own member, over connections that its clients share.
    Etcd(Arc<etcd::Member>),
}

impl Access {
    pub(crate) fn new(access_point: AccessPoint, workload: &Workload, retries: &Retries) -> Self {
        Self { access_point, workload: workload.clone(), retries: retries.clone() }
    }

    /// Opens a session for one client. The calling thread must reach the server's address.
    ///
    /// # Errors
    /// When the server can't be reached, or does not have the workload's procedures.
    pub async fn open(&self) -> Result<Session, Failure> {
        let Self { access_point, workload, retries } = self;
        let way = match access_point {
            AccessPoint::Galera(address) => Way::Galera(
                galera::Session::open(galera::connect(*address).await?, workload).await?,
            ),
            AccessPoint::Postgres(config) => {
                Way::Postgres(postgres::Session::open(config, workload).await?)
            }
            AccessPoint::Etcd(member) => Way::Etcd(member.session().await?),
        };
        Ok(Session::new(way, retries.clone()))
    }
}
