//! The places where a baseline's servers run: one for each region.
//!
//! A place has the address that servers listen on, and a way to run programs there. On loopback a
//! program runs directly. In a network namespace a command that enters the namespace precedes the
//! program. That command must be replaced by the program (`exec`), so that the started process is
//! the server and receives signals.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use crate::failure::Failure;
use crate::ports::free_ports;

/// The first port of a place in another network namespace. Its ports can't be probed, but its own
/// address has all of them free.
const PORT_FIRST: u16 = 21_000;

/// The place where one server runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    name: String,
    address: IpAddr,
    front: Vec<OsString>,
}

impl Placement {
    /// A place with this name and address, where programs run directly.
    ///
    /// # Panics
    /// When the name has other characters than letters, digits and `-`, because it becomes part of
    /// servers' settings.
    pub fn new(name: &str, address: IpAddr) -> Self {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        assert!(
            !name.is_empty() && name.chars().all(is_plain),
            "{name:?} is not a valid name of a place"
        );
        Self { name: name.to_owned(), address, front: Vec::new() }
    }

    /// The same place, with a command prefix that enters it: `ip netns exec NAME`.
    #[must_use]
    pub fn entered_by<S: Into<OsString>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.front = words.into_iter().map(Into::into).collect();
        self
    }

    /// Places on loopback with these names.
    pub fn loopback(names: &[String]) -> Vec<Self> {
        names.iter().map(|name| Self::new(name, Ipv4Addr::LOCALHOST.into())).collect()
    }

    /// The place's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address that servers listen on.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// A command that runs a program in this place.
    pub fn command(&self, program: &Path) -> Command {
        match self.front.split_first() {
            None => Command::new(program),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        }
    }

    /// Returns `N` ports that are free now.
    pub(crate) fn free_ports<const N: usize>(&self) -> Result<[SocketAddr; N], Failure> {
        if !self.address.is_loopback() {
            let port = |index| SocketAddr::new(self.address, PORT_FIRST + index as u16);
            return Ok(std::array::from_fn(port));
        }
        let cant = |error| Failure::failed(format!("no free port at {}", self.address), error);
        let ports = free_ports(self.address, N).map_err(cant)?;
        Ok(ports.try_into().expect("as many as wanted"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_run_behind_what_enters_the_place() {
        let place = Placement::new("us-east", "10.0.0.1".parse().expect("an address"));
        let words = |place: &Placement| {
            let command = place.command(Path::new("/bin/true"));
            let program = command.get_program().to_owned();
            let all = std::iter::once(program).chain(command.get_args().map(Into::into));
            all.map(|word| word.into_string().expect("ASCII")).collect::<Vec<_>>()
        };
        assert_eq!(words(&place), ["/bin/true"]);
        let inside = place.entered_by(["ip", "netns", "exec", "a"]);
        assert_eq!(words(&inside), ["ip", "netns", "exec", "a", "/bin/true"]);
    }

    #[test]
    fn ports_of_a_place_differ() {
        let loopback = &Placement::loopback(&["a".to_owned()])[0];
        let [a, b, c] = loopback.free_ports().expect("there are free ports");
        assert!(a != b && b != c && a != c);
        let far = Placement::new("far", "10.9.9.9".parse().expect("an address"));
        let [a, b] = far.free_ports().expect("all ports are free");
        assert_eq!((a.port() + 1, a.ip()), (b.port(), far.address()));
    }
}
