//! A region, and how to do something in it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::error::run;
use crate::router::network;
use crate::site::namespace_path;
use crate::{LabError, Options};

/// The device of every region.
const DEVICE: &str = "wan0";

/// Where a kernel that knows IPv6 has its settings, and below which MTU it leaves a device alone.
const IPV6: &str = "/proc/sys/net/ipv6";
const IPV6_MTU_MIN: u16 = 1_280;

/// What the kernel may hold for the router while that is busy: as many of the largest as the router
/// reads within some milliseconds.
const QUEUE_PACKETS: u32 = 10_000;

/// What a program that is started in a region finds in its environment: the region's name, and the
/// address of each region under its name.
const VARIABLE: &str = "LAB_";

/// The variables for regions at these addresses.
pub(crate) fn variables<'a>(
    own: &str,
    regions: impl IntoIterator<Item = (&'a str, IpAddr)>,
) -> Vec<(String, String)> {
    let shown = |name: &str| format!("{VARIABLE}{}", name.to_uppercase().replace('-', "_"));
    let addresses = regions.into_iter().map(|(name, address)| (shown(name), address.to_string()));
    addresses.chain([(format!("{VARIABLE}REGION"), own.to_owned())]).collect()
}

/// A region of a lab.
#[derive(Clone, Debug)]
pub struct Region {
    name: String,
    address: Ipv4Addr,
    namespace: String,
    /// Set for programs that are started here.
    variables: Arc<[(String, String)]>,
}

impl Region {
    pub(crate) fn new(
        name: String,
        address: Ipv4Addr,
        namespace: String,
        variables: Vec<(String, String)>,
    ) -> Self {
        Self { name, address, namespace, variables: variables.into() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address. The rest of its subnet, of 256 addresses, is the region's, too: another takes
    /// no more than `ip address add` in its namespace.
    pub fn address(&self) -> IpAddr {
        self.address.into()
    }

    /// The name of its network namespace, for tools that want to know.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The words in front of a program that has it run in this region, for whoever starts programs
    /// by command lines of their own. They end with the program in their place, so that the process
    /// that was started is the program.
    pub fn front(&self) -> [OsString; 3] {
        // What runs between a fork and an exec would be unsafe code here; nsenter is part of
        // every Debian, and unlike `ip netns exec` leaves what is mounted on /sys as it is.
        let namespace = namespace_path(&self.namespace);
        ["nsenter".into(), format!("--net={}", namespace.display()).into(), "--".into()]
    }

    /// A program that will run in this region, once it is started. It finds the addresses of all
    /// regions in its environment (`LAB_US_EAST` and so on), and ends with the lab.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let [first, rest @ ..] = self.front();
        let mut command = Command::new(first);
        command.args(rest).arg(program);
        command.envs(self.variables.iter().cloned());
        command
    }

    /// Does something in this region, in a thread of its own: sockets that it opens are the
    /// region's from then on, and processes and threads that it starts run in it, also when it has
    /// ended.
    ///
    /// # Errors
    /// When the region is gone.
    ///
    /// # Panics
    /// When `what` does.
    pub fn enter<R: Send>(&self, what: impl FnOnce() -> R + Send) -> Result<R, LabError> {
        let within = || {
            move_into(&self.namespace)?;
            Ok(what())
        };
        std::thread::scope(|scope| match scope.spawn(within).join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    /// Packets that its device dropped since the router did not keep up: where there are any, it
    /// is this machine that was measured.
    ///
    /// # Errors
    /// When the region is gone.
    pub fn overruns(&self) -> Result<u64, LabError> {
        let devices = self.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev"))?;
        let devices =
            devices.map_err(|error| LabError::failed("can't read /proc/thread-self/net", error))?;
        Ok(overruns(&devices).unwrap_or_default())
    }

    /// Makes the region's device. Its namespace must be there, and empty.
    pub(crate) fn make_device(&self, options: &Options) -> Result<SyncDevice, LabError> {
        let cant = |error: io::Error| {
            LabError::failed(format!("can't make a device for {}", self.name), error)
        };
        let make = || {
            let builder = DeviceBuilder::new()
                .name(DEVICE)
                .mtu(options.mtu)
                .tx_queue_len(QUEUE_PACKETS)
                .enable(false)
                .with(|device| {
                    device.offload(options.offload);
                });
            let device = builder.build_sync()?;
            device.set_nonblocking(true)?;
            Ok(device)
        };
        let device = self.enter(make)?.map_err(cant)?;
        let within = |words: &str| {
            run(Command::new("ip").args(["-n", &self.namespace]).args(words.split(' ')))
        };
        within("link set lo up")?;
        if options.mtu >= IPV6_MTU_MIN && Path::new(IPV6).exists() {
            // No address of IPv6, and so nothing that the kernel sends by itself.
            within(&format!("link set {DEVICE} addrgenmode none"))?;
        }
        within(&format!("address add {}/24 dev {DEVICE}", self.address))?;
        within(&format!("link set {DEVICE} up"))?;
        within(&format!("route add {} dev {DEVICE}", network()))?;
        Ok(device)
    }
}

/// Becomes another program, in a namespace. Returns only when that is not possible.
pub fn become_program(namespace: &str, command: &mut Command) -> LabError {
    if let Err(error) = move_into(namespace) {
        return error;
    }
    let program = command.get_program().to_string_lossy().into_owned();
    LabError::failed(format!("can't run {program}"), command.exec())
}

/// Moves the calling thread.
fn move_into(namespace: &str) -> Result<(), LabError> {
    let path: PathBuf = namespace_path(namespace);
    let cant = |error| LabError::failed(format!("can't enter {}", path.display()), error);
    let file = File::open(&path).map_err(cant)?;
    let moved = move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network));
    moved.map_err(|error| cant(error.into()))
}

/// Reads how many packets the device dropped that it should have sent, from a list of the kernel.
fn overruns(devices: &str) -> Option<u64> {
    /// Eight numbers of what is received, then bytes, packets and errors of what is sent.
    const DROPPED: usize = 8 + 3;

    let line = devices.lines().find_map(|line| line.trim().strip_prefix(DEVICE))?;
    line.strip_prefix(':')?.split_whitespace().nth(DROPPED)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_dropped_is_read() {
        let devices = "Inter-| Receive | Transmit\n\
            lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  \
            wan0: 1 2 3 4 5 6 7 8 9 10 11 77 13 14 15 16\n";
        assert_eq!(overruns(devices), Some(77));
        assert_eq!(overruns("lo: 1 2 3"), None);
    }

    #[test]
    fn programs_are_told_where_everybody_is() {
        let address = |last| IpAddr::from([10, 86, last, 1]);
        let told = variables("eu-west", [("us-east", address(1)), ("eu-west", address(2))]);
        let told: Vec<String> =
            told.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(told, ["LAB_US_EAST=10.86.1.1", "LAB_EU_WEST=10.86.2.1", "LAB_REGION=eu-west"]);
    }
}
