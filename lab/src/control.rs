//! Requests to a lab that runs in another process: one line of JSON in each direction, over a Unix
//! socket that only root can reach.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::region::variables;
use crate::resources::{self, LabResources};
use crate::router::{WideArea, WideAreaStatus};
use crate::{LabError, Region, become_program};

/// The maximum length of a line: a status of 32 regions has 700 KB.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// The time that each side waits for the other's line.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request to a lab.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Report the status.
    Status,
    /// Cut both directions between two regions.
    Cut {
        /// One region.
        a: String,
        /// The other.
        b: String,
    },
    /// Heal both directions between two regions.
    Heal {
        /// One region.
        a: String,
        /// The other.
        b: String,
    },
    /// Heal all links.
    HealAll,
    /// Cut all links of a region.
    Isolate {
        /// The region.
        region: String,
    },
    /// Change the round-trip time between two regions.
    RoundTrip {
        /// One region.
        a: String,
        /// The other.
        b: String,
        /// The round-trip time.
        trip: Duration,
    },
}

/// The answer to a request: the status after it was carried out, or the error.
type Answer = Result<Status, LabError>;

/// The status of a lab.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub lab: String,
    /// The MTU of its links.
    pub mtu: u16,
    /// Its regions.
    pub regions: Vec<RegionStatus>,
    /// The status of the emulated WAN.
    pub wide_area: WideAreaStatus,
}

/// The status of a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionStatus {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Its network namespace.
    pub namespace: String,
    /// Packets dropped before they reached a link, because the router did not keep up.
    pub overruns: u64,
}

impl Status {
    /// Replaces this process by a program in a region. Returns only if that fails.
    pub fn become_program(&self, region: &str, command: &mut Command) -> LabError {
        let Some(found) = self.regions.iter().find(|it| it.name == region) else {
            let known: Vec<&str> = self.regions.iter().map(|it| it.name.as_str()).collect();
            let known = known.join(", ");
            return LabError::Usage(format!("unknown region {region}; known: {known}"));
        };
        let addresses = self.regions.iter().map(|it| (it.name.as_str(), it.address));
        command.envs(variables(region, addresses));
        become_program(&found.namespace, command)
    }
}

/// The names of the labs that run on this machine.
///
/// # Errors
/// When the caller is not root.
pub fn running() -> Result<Vec<String>, LabError> {
    resources::running()
}

/// Finds the running lab of this name, or the only running lab.
///
/// # Errors
/// When there is no such lab, or several run and no name is given.
pub fn find(name: Option<&str>) -> Result<String, LabError> {
    let mut running = running()?;
    match (name, running.len()) {
        (_, 0) => Err(LabError::Usage(
            "no lab is running: `sudo pangea lab up` starts one, in another terminal".to_owned(),
        )),
        (None, 1) => Ok(running.remove(0)),
        (None, _) => {
            let all = running.join(", ");
            Err(LabError::Usage(format!("several labs are running: select one with --lab: {all}")))
        }
        (Some(name), _) if running.iter().any(|id| id == name) => Ok(name.to_owned()),
        (Some(name), _) => {
            let all = running.join(", ");
            Err(LabError::Usage(format!("unknown lab {name}; running: {all}")))
        }
    }
}

/// Sends a request to a lab.
///
/// # Errors
/// When the lab can't be reached, or rejects the request.
pub fn ask(lab: &str, request: &Request) -> Result<Status, LabError> {
    let cant = |error| LabError::failed(format!("can't query the lab {lab}"), error);
    let mut stream = UnixStream::connect(resources::control_path(lab)).map_err(cant)?;
    be_patient(&stream).map_err(cant)?;
    write_line(&mut stream, request).map_err(cant)?;
    let answer: Answer = read_line(&stream).map_err(cant)?;
    answer
}

fn be_patient(stream: &UnixStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

fn write_line(stream: &mut UnixStream, value: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn read_line<T: serde::de::DeserializeOwned>(stream: &UnixStream) -> std::io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

/// The thread that answers requests.
#[derive(Debug)]
pub(crate) struct Server {
    answering: Arc<Answering>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(
        resources: &LabResources,
        regions: Vec<Region>,
        wide_area: WideArea,
        mtu: u16,
    ) -> Result<Self, LabError> {
        let path = resources.control();
        let cant = |error| LabError::failed(format!("can't listen on {}", path.display()), error);
        let listener = UnixListener::bind(&path).map_err(cant)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|it| cant(it.into()))?);
        let (stopped, lab) = (Arc::clone(&stop), resources.id().to_owned());
        let answering = Arc::new(Answering { lab, mtu, regions, wide_area });
        let serving = Arc::clone(&answering);
        let serve = move || serving.serve(&listener, &stopped);
        let thread = std::thread::Builder::new().name("lab-control".to_owned()).spawn(serve);
        Ok(Self { answering, stop, thread: Some(thread.map_err(cant)?) })
    }

    /// The status, as it is reported to a client.
    pub(crate) fn status(&self) -> Result<Status, LabError> {
        self.answering.answer(&Request::Status)
    }

    /// Ends the thread after its current answer.
    pub(crate) fn stop(&mut self) -> Result<(), LabError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let woken = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        woken.map_err(|error| LabError::failed("can't stop a thread", error))?;
        let panicked = |_| LabError::Failed("the control thread of the lab panicked".to_owned());
        thread.join().map_err(panicked)
    }
}

/// Needed for a lab that failed to start.
impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!("{error}");
        }
    }
}

/// The state that answers are made from.
#[derive(Debug)]
struct Answering {
    lab: String,
    mtu: u16,
    regions: Vec<Region>,
    wide_area: WideArea,
}

impl Answering {
    fn serve(&self, listener: &UnixListener, stop: &OwnedFd) {
        loop {
            let mut watched =
                [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
            match poll(&mut watched, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return tracing::warn!("the lab can't be queried any more: {error}"),
            }
            if !watched[1].revents().is_empty() {
                return;
            }
            if watched[0].revents().is_empty() {
                continue;
            }
            let served = listener.accept().and_then(|(stream, _)| self.converse(stream));
            if let Err(error) = served {
                tracing::warn!("a query of the lab was not answered: {error}");
            }
        }
    }

    fn converse(&self, mut stream: UnixStream) -> std::io::Result<()> {
        be_patient(&stream)?;
        let answer: Answer = match read_line(&stream) {
            Ok(request) => self.answer(&request),
            Err(error) => Err(LabError::Usage(format!("malformed request: {error}"))),
        };
        write_line(&mut stream, &answer)
    }

    fn answer(&self, request: &Request) -> Result<Status, LabError> {
        match request {
            Request::Status => {}
            Request::Cut { a, b } => self.wide_area.cut(a, b)?,
            Request::Heal { a, b } => self.wide_area.heal(a, b)?,
            Request::HealAll => self.wide_area.heal_all()?,
            Request::Isolate { region } => self.wide_area.isolate(region)?,
            Request::RoundTrip { a, b, trip } => self.wide_area.set_round_trip(a, b, *trip)?,
        }
        let regions = self.regions.iter().map(|region| {
            Ok(RegionStatus {
                name: region.name().to_owned(),
                address: region.address(),
                namespace: region.namespace().to_owned(),
                overruns: region.overruns()?,
            })
        });
        let regions = regions.collect::<Result<_, LabError>>()?;
        Ok(Status {
            lab: self.lab.clone(),
            mtu: self.mtu,
            regions,
            wide_area: self.wide_area.status()?,
        })
    }
}
