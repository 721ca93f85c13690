//! A lab: its regions, its emulated WAN, and their removal.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::thread::{CapabilitySet, capabilities};

use crate::control::{Server, Status};
use crate::region::variables;
use crate::resources::LabResources;
use crate::router::{RouterThread, address_of};
use crate::wan::RegionIndex;
use crate::{LabError, Options, Region, WideArea};

/// The kernel's device for creating TUN devices.
const TUN: &str = "/dev/net/tun";

/// The programs that a lab runs, and their Debian packages.
const PROGRAMS: [(&str, &str, &str); 3] =
    [("ip", "-V", "iproute2"), ("nsenter", "-V", "util-linux"), ("chrt", "-V", "util-linux")];

/// Checks whether a lab can run on this machine.
///
/// # Errors
/// The missing requirement, with the remedy.
pub fn check() -> Result<(), LabError> {
    let needed = CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN;
    let own = capabilities(None)
        .map_err(|error| LabError::failed("can't read the capabilities of this process", error))?;
    if !own.effective.contains(needed) {
        return Err(not_root());
    }
    if !Path::new(TUN).exists() {
        return Err(LabError::Missing(format!(
            "{TUN} does not exist: run `modprobe tun`; in a container, add the device (`--device \
             {TUN}`) and the capabilities CAP_NET_ADMIN and CAP_SYS_ADMIN"
        )));
    }
    for (program, version, package) in PROGRAMS {
        let mut command = Command::new(program);
        let ran = command.arg(version).stdout(Stdio::null()).stderr(Stdio::null()).status();
        match ran {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let what = format!("{program} is missing: run `apt-get install {package}`");
                return Err(LabError::Missing(what));
            }
            Err(error) => return Err(LabError::failed(format!("can't run {program}"), error)),
        }
    }
    Ok(())
}

/// Only root may create or enter namespaces.
pub(crate) fn not_root() -> LabError {
    let what = "network namespaces need root: run the command with sudo (`sudo pangea lab ..`)";
    LabError::Missing(what.to_owned())
}

/// A running lab. It is removed with all its processes when this is dropped, also during a panic.
/// The caller must handle signals.
#[derive(Debug)]
pub struct Lab {
    regions: Vec<Region>,
    control: Server,
    router: RouterThread,
    resources: LabResources,
}

impl Lab {
    /// Creates a lab. The remains of killed labs are removed first.
    ///
    /// # Errors
    /// When the options are invalid, or the machine does not support a lab. No part of the lab then
    /// remains.
    pub fn up(options: &Options) -> Result<Self, LabError> {
        options.check()?;
        check()?;
        let mut resources = LabResources::claim()?;
        let names = || options.regions.iter().enumerate();
        let addresses: Vec<(&str, IpAddr)> =
            names().map(|(at, name)| (name.as_str(), address_of(RegionIndex(at)).into())).collect();
        let mut regions = Vec::new();
        let mut devices = Vec::new();
        for (at, name) in names() {
            let namespace = resources.add_namespace(name)?;
            let variables = variables(name, addresses.iter().copied());
            let address = address_of(RegionIndex(at));
            let region = Region::new(name.clone(), address, namespace, variables);
            devices.push(region.make_device(options)?);
            regions.push(region);
        }
        let router = RouterThread::start(options, devices)?;
        let control =
            Server::start(&resources, regions.clone(), router.wide_area().clone(), options.mtu)?;
        Ok(Self { regions, control, router, resources })
    }

    /// The lab's name, as used by `--lab`.
    pub fn id(&self) -> &str {
        self.resources.id()
    }

    /// The regions, in the order of the options.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The region of this name.
    ///
    /// # Errors
    /// When there is no such region.
    pub fn region(&self, name: &str) -> Result<&Region, LabError> {
        let found = self.regions.iter().find(|region| region.name() == name);
        found.ok_or_else(|| LabError::Usage(format!("unknown region {name} in this lab")))
    }

    /// The emulated WAN between the regions.
    pub fn wide_area(&self) -> &WideArea {
        self.router.wide_area()
    }

    /// Ends all processes in the regions, and removes the regions.
    ///
    /// # Errors
    /// When something can't be removed, or the router had ended before.
    pub fn down(mut self) -> Result<(), LabError> {
        self.end()
    }

    /// The status, as reported over the lab's socket.
    ///
    /// # Errors
    /// When its router has stopped, or a region no longer exists.
    pub fn status(&self) -> Result<Status, LabError> {
        self.control.status()
    }

    fn end(&mut self) -> Result<(), LabError> {
        let stopped = self.control.stop();
        // The processes end while the network still exists, so that they can close their
        // connections.
        let ended = self.resources.end_processes();
        let router = self.router.stop();
        let removed = self.resources.remove();
        stopped.and(ended).and(router).and(removed)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!("the lab {} could not be stopped cleanly: {error}", self.resources.id());
        }
    }
}
