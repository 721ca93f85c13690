//! The cost of the lab itself: the lateness of packets, packets per second, and bits per second,
//! between two regions on this machine.
//!
//! ```text
//! sudo -E cargo run --release -p pangea-lab --example measure
//! ```
//!
//! Senders, receivers, both kernels' stacks and the router share the machine's cores, and the
//! printed values are for all of them together.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use pangea_lab::{Lab, LabError, Options};

const ROUND_TRIP: Duration = Duration::from_millis(50);
const PROBES: usize = 1_000;
const SECS: Duration = Duration::from_secs(4);
const DATAGRAM_BYTES: usize = 64;

fn main() -> Result<(), LabError> {
    latency("no other traffic")?;
    for (mtu, offload) in [(1_500, true), (1_500, false), (9_000, false), (65_000, false)] {
        tcp(mtu, offload)?;
    }
    udp()
}

fn options() -> Options {
    Options::new(["a", "b"], |a, b| if a == b { Duration::ZERO } else { ROUND_TRIP })
}

/// CPU time so far in seconds, user and system: of all threads of this process, and of the
/// router's. The router's time includes a packet's path through the network stack of the receiving
/// region.
fn cpu_secs() -> (f64, f64) {
    /// The kernel's USER_HZ, which is 100 on all platforms.
    const TICKS: f64 = 100.0;

    let secs = |path: &std::path::Path| {
        let stat = std::fs::read_to_string(path).expect("/proc is mounted");
        let (name, fields) = stat.rsplit_once(") ").expect("the name is in parentheses");
        let ticks = fields.split(' ').skip(11).take(2).map(|it| it.parse().unwrap_or(0.0));
        (name.ends_with("(lab-router"), ticks.sum::<f64>() / TICKS)
    };
    let threads = std::fs::read_dir("/proc/self/task").expect("/proc is mounted").flatten();
    let threads = threads.map(|thread| secs(&thread.path().join("stat")));
    let router = threads.filter(|(is_router, _)| *is_router).map(|(_, secs)| secs).sum();
    (secs(std::path::Path::new("/proc/self/stat")).1, router)
}

/// The number of busy cores since `before`, and the router's share.
fn cores(before: (f64, f64), secs: f64) -> String {
    let now = cpu_secs();
    let (all, router) = ((now.0 - before.0) / secs, (now.1 - before.1) / secs);
    format!("{all:.2} cores, {router:.2} of them for the router")
}

fn latency(beside: &str) -> Result<(), LabError> {
    let lab = Lab::up(&options())?;
    let [a, b] = lab.regions() else { panic!("two regions") };
    let bind = |region: &pangea_lab::Region| {
        region.enter(|| UdpSocket::bind((region.address(), 0)).expect("a port is free"))
    };
    let (from, to) = (bind(a)?, bind(b)?);
    let target = to.local_addr().expect("the socket is bound");
    std::thread::spawn(move || {
        let mut bytes = [0; 8];
        while let Ok((len, sender)) = to.recv_from(&mut bytes) {
            if len == 0 || to.send_to(&bytes[..len], sender).is_err() {
                break;
            }
        }
    });
    let mut extra_us: Vec<f64> = (0..PROBES)
        .map(|_| {
            let began = Instant::now();
            from.send_to(&[1; 8], target).expect("the lab is up");
            from.recv_from(&mut [0; 8]).expect("the lab is up");
            (began.elapsed() - ROUND_TRIP).as_secs_f64() * 1e6
        })
        .collect();
    from.send_to(&[], target).expect("the lab is up");
    extra_us.sort_by(f64::total_cmp);
    let at = |quantile: f64| extra_us[(quantile * (PROBES - 1) as f64) as usize];
    let late = lab.wide_area().status()?.late_us;
    println!(
        "round trip beyond {ROUND_TRIP:?}, with {beside}: p50 {:.0} us, p99 {:.0} us, max \
         {:.0} us; added by the router, one way: {late:?}",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    lab.down()
}

fn tcp(mtu: u16, offload: bool) -> Result<(), LabError> {
    // There is no delay because Linux's default windows do not fill a long link.
    let options = Options { mtu, offload, ..Options::new(["a", "b"], |_, _| Duration::ZERO) };
    let lab = Lab::up(&options)?;
    let [a, b] = lab.regions() else { panic!("two regions") };
    let listener = b.enter(|| TcpListener::bind((b.address(), 0)).expect("a port is free"))?;
    let address = listener.local_addr().expect("the socket is bound");
    let mut sender = a.enter(|| TcpStream::connect(address).expect("the lab is up"))?;
    let (began, cpu) = (Instant::now(), cpu_secs());
    let sending = std::thread::spawn(move || {
        let data = vec![7; 256 << 10];
        while began.elapsed() < SECS {
            sender.write_all(&data).expect("the lab is up");
        }
    });
    let mut stream = listener.accept().expect("the lab is up").0;
    let (mut buffer, mut bytes) = (vec![0; 256 << 10], 0);
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        bytes += len;
    }
    sending.join().expect("the thread does not panic");
    let secs = began.elapsed().as_secs_f64();
    let (status, cores) = (lab.wide_area().status()?, cores(cpu, secs));
    println!(
        "TCP, MTU {mtu}, offloads {offload}: {:.2} Gbit/s, {:.0} packets/s, {cores}, late {:?}",
        bytes as f64 * 8e-9 / secs,
        status.links.iter().map(|link| link.counts.delivered.packets).sum::<u64>() as f64 / secs,
        status.late_us
    );
    lab.down()
}

fn udp() -> Result<(), LabError> {
    let lab = Lab::up(&options())?;
    let [a, b] = lab.regions() else { panic!("two regions") };
    let to = b.enter(|| UdpSocket::bind((b.address(), 0)).expect("a port is free"))?;
    let from = a.enter(|| UdpSocket::bind((a.address(), 0)).expect("a port is free"))?;
    from.connect(to.local_addr().expect("the socket is bound")).expect("the lab is up");
    let (began, cpu) = (Instant::now(), cpu_secs());
    let mut sent = 0_u64;
    while began.elapsed() < SECS {
        for _ in 0..64 {
            // A full queue is reported as a kernel error, and counted below.
            sent += u64::from(from.send(&[7; DATAGRAM_BYTES]).is_ok());
        }
    }
    let secs = began.elapsed().as_secs_f64();
    let cores = cores(cpu, secs);
    let status = lab.wide_area().status()?;
    let passed = status.links.iter().map(|link| link.counts.sent.packets).sum::<u64>();
    println!(
        "UDP of {DATAGRAM_BYTES} bytes over {ROUND_TRIP:?}: {:.0} packets/s through the router, \
         {:.0} sent, {} dropped before it, {cores}, late {:?}",
        passed as f64 / secs,
        sent as f64 / secs,
        a.overruns()?,
        status.late_us
    );
    lab.down()
}
