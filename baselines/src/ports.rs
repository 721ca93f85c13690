//! Free ports for servers that start later, or start again.
//!
//! A port that the system chooses for a listener is in the range of its outgoing connections. Once
//! the listener is closed, any connection of any process may take it before the server starts.
//! These ports are below that range, and reserved as long as this process runs: two programs that
//! start clusters on one machine do not choose the same.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

/// Below the outgoing connections of Linux (from 32768) and of macOS (from 49152).
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// Returns this many different ports at an address of this machine, on which nobody listens.
///
/// # Errors
///
/// If the address is not one of this machine, or too many ports are in use.
///
/// # Examples
///
/// ```
/// let localhost = [127, 0, 0, 1].into();
/// let ports = pangea_baselines::free_ports(localhost, 2).expect("there are free ports");
/// assert_ne!(ports[0], ports[1]);
/// let listener = std::net::TcpListener::bind(ports[0]);
/// # assert!(listener.is_ok());
/// ```
pub fn free_ports(address: IpAddr, count: usize) -> io::Result<Vec<SocketAddr>> {
    // Fails early if the address is not one of this machine.
    drop(TcpListener::bind((address, 0))?);
    let first = fastrand::u16(PORTS);
    let free = (first..PORTS.end)
        .chain(PORTS.start..first)
        .filter(|&port| TcpListener::bind((address, port)).is_ok() && reservations::reserve(port));
    let ports: Vec<_> = free.take(count).map(|port| SocketAddr::new(address, port)).collect();
    if ports.len() < count {
        let why = format!("fewer than {count} free ports from {} to {}", PORTS.start, PORTS.end);
        return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
    }
    Ok(ports)
}

/// A reservation is an abstract socket: it has no file, and ends with the process.
#[cfg(target_os = "linux")]
mod reservations {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    use std::sync::{Mutex, PoisonError};

    static HELD: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());

    /// Returns whether nobody had reserved the port.
    pub(super) fn reserve(port: u16) -> bool {
        let name = SocketAddr::from_abstract_name(format!("pangea-port-{port}"));
        let Ok(socket) = name.and_then(|name| UnixDatagram::bind_addr(&name)) else {
            return false;
        };
        HELD.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        true
    }
}

/// Other systems have no such sockets.
#[cfg(not(target_os = "linux"))]
mod reservations {
    pub(super) fn reserve(_port: u16) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        let address: IpAddr = [127, 0, 0, 1].into();
        let mut all: Vec<SocketAddr> =
            (0..50).flat_map(|_| free_ports(address, 6).expect("there are free ports")).collect();
        assert!(all.iter().all(|port| PORTS.contains(&port.port())));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 300);
    }

    #[test]
    fn an_address_of_another_machine_has_none() {
        // TEST-NET-1 of RFC 5737 belongs to nobody.
        let error = free_ports([192, 0, 2, 1].into(), 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }
}
