//! A region, and running code in it.

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
use crate::resources::namespace_path;
use crate::router::network;
use crate::{LabError, Options};

/// The name of every region's device.
const DEVICE: &str = "wan0";

/// The directory of the kernel's IPv6 settings, and the MTU below which IPv6 ignores a device.
const IPV6: &str = "/proc/sys/net/ipv6";
const IPV6_MTU_MIN: u16 = 1_280;

/// The device's queue while the router is busy: as many of the largest packets as the router reads
/// within some milliseconds.
const QUEUE_PACKETS: u32 = 10_000;

/// The prefix of the environment variables of a program in a region: the region's name, and the
/// address of each region under its name.
const VARIABLE: &str = "LAB_";

/// The environment variables for regions with these addresses.
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
    /// The environment variables of programs started in this region.
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

    /// The region's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The region's address. The other addresses of its /24 subnet belong to the region too, and
    /// can be used after an `ip address add` in its namespace.
    pub fn address(&self) -> IpAddr {
        self.address.into()
    }

    /// The name of its network namespace, for other tools.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The command prefix that runs a program in this region, for callers with their own command
    /// lines. The prefix command is replaced by the program, so the process that was started is the
    /// program.
    pub fn front(&self) -> [OsString; 3] {
        // Code between fork and exec would be unsafe here. nsenter is part of every Debian, and
        // unlike `ip netns exec` does not remount /sys.
        let namespace = namespace_path(&self.namespace);
        ["nsenter".into(), format!("--net={}", namespace.display()).into(), "--".into()]
    }

    /// A command that runs a program in this region. Its environment contains the addresses of all
    /// regions (`LAB_US_EAST` and so on), and it ends with the lab.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let [first, rest @ ..] = self.front();
        let mut command = Command::new(first);
        command.args(rest).arg(program);
        command.envs(self.variables.iter().cloned());
        command
    }

    /// Runs `what` in this region, on a separate thread. Sockets that it opens belong to the
    /// region, and processes and threads that it starts run in it, also after it has returned.
    ///
    /// # Errors
    /// When the region no longer exists.
    ///
    /// # Panics
    /// When `what` panics.
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

    /// The number of packets that its device dropped because the router did not keep up. If there
    /// are any, a measurement shows the limits of this machine.
    ///
    /// # Errors
    /// When the region no longer exists.
    pub fn overruns(&self) -> Result<u64, LabError> {
        let devices = self.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev"))?;
        let devices =
            devices.map_err(|error| LabError::failed("can't read /proc/thread-self/net", error))?;
        Ok(overruns(&devices).unwrap_or_default())
    }

    /// Creates the region's device. Its namespace must exist and be empty.
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
            // Without an IPv6 address the kernel sends no packets of its own.
            within(&format!("link set {DEVICE} addrgenmode none"))?;
        }
        within(&format!("address add {}/24 dev {DEVICE}", self.address))?;
        within(&format!("link set {DEVICE} up"))?;
        within(&format!("route add {} dev {DEVICE}", network()))?;
        Ok(device)
    }
}

/// Replaces this process by another program, in a namespace. Returns only if that fails.
pub fn become_program(namespace: &str, command: &mut Command) -> LabError {
    if let Err(error) = move_into(namespace) {
        return error;
    }
    let program = command.get_program().to_string_lossy().into_owned();
    LabError::failed(format!("can't run {program}"), command.exec())
}

/// Moves the calling thread into a namespace.
fn move_into(namespace: &str) -> Result<(), LabError> {
    let path: PathBuf = namespace_path(namespace);
    let cant = |error| LabError::failed(format!("can't enter {}", path.display()), error);
    let file = File::open(&path).map_err(cant)?;
    let moved = move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network));
    moved.map_err(|error| cant(error.into()))
}

/// Parses the number of packets that the device dropped on transmission, from the kernel's
/// statistics.
fn overruns(devices: &str) -> Option<u64> {
    /// There are eight numbers for received packets, then bytes, packets and errors of sent
    /// packets.
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
        let found = variables("eu-west", [("us-east", address(1)), ("eu-west", address(2))]);
        let found: Vec<String> =
            found.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(found, ["LAB_US_EAST=10.86.1.1", "LAB_EU_WEST=10.86.2.1", "LAB_REGION=eu-west"]);
    }
}
