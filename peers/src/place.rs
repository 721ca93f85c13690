//! Where a peer's servers run: one place a region.
//!
//! A place has an address that servers listen on, and a way to run a program there. On loopback
//! that is the program itself; in a network namespace it is what enters the namespace, in front of
//! the program. Whatever stands in front must become the program (`exec`), so that the process
//! that was started is the server and can be told to end.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;

use crate::failure::Failure;

/// The first port of a place that is not of this network namespace, where nobody can be asked
/// which ports are free: an address of its own has all of them.
const PORT_FIRST: u16 = 21_000;

/// Where one server runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    name: String,
    address: IpAddr,
    front: Vec<OsString>,
}

impl Place {
    /// A place with this name and address, in which programs run as they are.
    ///
    /// # Panics
    /// When the name is not of letters, digits and `-`: it becomes part of servers' settings.
    pub fn new(name: &str, address: IpAddr) -> Self {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        assert!(!name.is_empty() && name.chars().all(is_plain), "{name:?} names no place");
        Self { name: name.to_owned(), address, front: Vec::new() }
    }

    /// The same place, entered by these words in front of a program: `ip netns exec NAME`.
    #[must_use]
    pub fn entered_by<S: Into<OsString>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.front = words.into_iter().map(Into::into).collect();
        self
    }

    /// Places on loopback with these names.
    pub fn loopback(names: &[String]) -> Vec<Self> {
        names.iter().map(|name| Self::new(name, Ipv4Addr::LOCALHOST.into())).collect()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What servers listen on.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// A command that runs a program there.
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

    /// So many ports that are free now.
    pub(crate) fn free_ports<const N: usize>(&self) -> Result<[SocketAddr; N], Failure> {
        if !self.address.is_loopback() {
            let port = |index| SocketAddr::new(self.address, PORT_FIRST + index as u16);
            return Ok(std::array::from_fn(port));
        }
        // All are held until the last is found, so that they differ.
        let mut held = Vec::with_capacity(N);
        for _ in 0..N {
            let listener = TcpListener::bind((self.address, 0));
            let cant = |error| Failure::failed(format!("no free port at {}", self.address), error);
            held.push(listener.map_err(cant)?);
        }
        let address = |index: usize| held[index].local_addr().expect("a bound socket has one");
        Ok(std::array::from_fn(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_run_behind_what_enters_the_place() {
        let place = Place::new("us-east", "10.0.0.1".parse().expect("an address"));
        let words = |place: &Place| {
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
        let loopback = &Place::loopback(&["a".to_owned()])[0];
        let [a, b, c] = loopback.free_ports().expect("there are free ports");
        assert!(a != b && b != c && a != c);
        let far = Place::new("far", "10.9.9.9".parse().expect("an address"));
        let [a, b] = far.free_ports().expect("all are free");
        assert_eq!((a.port() + 1, a.ip()), (b.port(), far.address()));
    }
}
