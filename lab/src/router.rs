//! The thread between the regions' devices and the emulated WAN.
//!
//! One thread reads the packets that regions send, asks the WAN for their arrival times, and writes
//! them at those times. It sleeps in `ppoll`, whose timeout is in nanoseconds. No other thread
//! accesses the WAN: requests from outside arrive as closures, which the thread runs between two
//! packets.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tun_rs::SyncDevice;

use crate::LabError;
use crate::error::run;
use crate::options::{Options, check_round_trip};
use crate::packet::{Packet, Pool, read_heading};
use crate::wan::{Counts, Moment, RegionIndex, Shape, Size, Wan};

/// The maximum number of packets read from one region before the next region's, and before timers
/// are checked.
const READS_AT_ONCE: usize = 64;

/// The range and precision of the lateness histogram: up to a minute, with two digits.
const LATE_NANOS_MAX: u64 = 60_000_000_000;
const LATE_DIGITS: u8 = 2;

/// The lowest real-time priority, which precedes all threads without one. A nice value would have
/// less effect: if the kernel groups processes by terminal, it only counts within one terminal.
const PRIORITY: &str = "1";

/// A closure that runs on the router's thread.
type Request = Box<dyn FnOnce(&mut Router) + Send>;

/// The status of a link, and its packet counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The sending region.
    pub from: String,
    /// The receiving region.
    pub to: String,
    /// Delay of this direction in milliseconds.
    pub delay_ms: f64,
    /// Maximum jitter in milliseconds.
    pub jitter_ms: f64,
    /// Bandwidth in bit/s, if limited.
    pub bits_per_sec: Option<u64>,
    /// The probability that a packet is lost.
    pub loss: f64,
    /// Whether it is cut.
    pub is_cut: bool,
    /// The packet counts.
    pub counts: Counts,
}

/// The status of the emulated WAN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WideAreaStatus {
    /// Both directions between each pair of regions.
    pub links: Vec<LinkStatus>,
    /// The lateness of packets at delivery in microseconds, by percentile.
    pub late_us: BTreeMap<String, f64>,
    /// Packets that are not for another region of the lab, or not IPv4. Packets within a region do
    /// not reach the router.
    pub stray: u64,
    /// CPU time of the router in microseconds.
    pub cpu_us: f64,
}

/// The emulated WAN of a running lab, to inspect and to change.
#[derive(Clone, Debug)]
pub struct WideArea {
    regions: Arc<[String]>,
    requests: mpsc::Sender<Request>,
    wake: Arc<OwnedFd>,
    end: Arc<End>,
}

impl WideArea {
    /// Cuts both directions between two regions. Packets in flight are lost.
    ///
    /// # Errors
    /// When a region is unknown, both are the same, or the router has stopped.
    pub fn cut(&self, a: &str, b: &str) -> Result<(), LabError> {
        let (a, b) = self.two_places(a, b)?;
        self.ask(move |router| both(a, b, |from, to| router.wan.cut(from, to)))
    }

    /// Heals both directions between two regions.
    ///
    /// # Errors
    /// As [`WideArea::cut`].
    pub fn heal(&self, a: &str, b: &str) -> Result<(), LabError> {
        let (a, b) = self.two_places(a, b)?;
        self.ask(move |router| both(a, b, |from, to| router.wan.heal(from, to)))
    }

    /// Heals all links.
    ///
    /// # Errors
    /// When the router has stopped.
    pub fn heal_all(&self) -> Result<(), LabError> {
        self.ask(|router| pairs(router.wan.places(), |from, to| router.wan.heal(from, to)))
    }

    /// Cuts a region off from all others.
    ///
    /// # Errors
    /// When it is unknown, or the router has stopped.
    pub fn isolate(&self, region: &str) -> Result<(), LabError> {
        let alone = self.place(region)?;
        self.ask(move |router| {
            let others = (0..router.wan.places()).map(RegionIndex).filter(|other| *other != alone);
            others.for_each(|other| both(alone, other, |from, to| router.wan.cut(from, to)));
        })
    }

    /// Changes the round-trip time between two regions, for packets sent from now on.
    ///
    /// # Errors
    /// As [`WideArea::cut`], and when it exceeds the limit.
    pub fn set_round_trip(&self, a: &str, b: &str, trip: Duration) -> Result<(), LabError> {
        check_round_trip(trip)?;
        let (a, b) = self.two_places(a, b)?;
        let delay = trip / 2;
        self.ask(move |router| {
            both(a, b, |from, to| {
                let shape = Shape { delay, ..router.wan.shape(from, to) };
                router.wan.set_shape(from, to, shape);
            });
        })
    }

    /// The current status of the WAN.
    ///
    /// # Errors
    /// When the router has stopped.
    pub fn status(&self) -> Result<WideAreaStatus, LabError> {
        self.ask(|router| router.status())
    }

    /// Waits until the router ends.
    ///
    /// # Errors
    /// When it ended for another reason than the lab's removal.
    pub fn wait_until_it_ends(&self) -> Result<(), LabError> {
        self.end.wait()
    }

    /// Runs a closure on the router's thread, and waits for it.
    fn ask<R: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Router) -> R + Send + 'static,
    ) -> Result<R, LabError> {
        let stopped = || LabError::Failed("the router of the lab has stopped".to_owned());
        let (answer, answered) = mpsc::sync_channel(1);
        let request: Request = Box::new(move |router| {
            // The requester may have stopped waiting.
            let _ = answer.send(what(router));
        });
        self.requests.send(request).map_err(|_| stopped())?;
        self.wake()?;
        answered.recv().map_err(|_| stopped())
    }

    fn wake(&self) -> Result<(), LabError> {
        match rustix::io::write(&self.wake, &1_u64.to_ne_bytes()) {
            // The counter is full of wake-ups that have not been read yet.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(LabError::failed("can't wake the router", error)),
        }
    }

    fn place(&self, region: &str) -> Result<RegionIndex, LabError> {
        let at = self.regions.iter().position(|name| name == region);
        at.map(RegionIndex).ok_or_else(|| {
            let known = self.regions.join(", ");
            LabError::Usage(format!("unknown region {region} in this lab; known: {known}"))
        })
    }

    fn two_places(&self, a: &str, b: &str) -> Result<(RegionIndex, RegionIndex), LabError> {
        if a == b {
            return Err(LabError::Usage(format!("{a} has no link to itself: specify two regions")));
        }
        Ok((self.place(a)?, self.place(b)?))
    }
}

/// Calls `each` for both directions.
fn both(a: RegionIndex, b: RegionIndex, mut each: impl FnMut(RegionIndex, RegionIndex)) {
    each(a, b);
    each(b, a);
}

/// Calls `each` for every ordered pair.
fn pairs(places: usize, mut each: impl FnMut(RegionIndex, RegionIndex)) {
    for from in (0..places).map(RegionIndex) {
        (0..places).map(RegionIndex).filter(|to| *to != from).for_each(|to| each(from, to));
    }
}

/// The result of the router, once it has ended.
#[derive(Debug, Default)]
struct End {
    how: Mutex<Option<Result<(), LabError>>>,
    ended: Condvar,
}

impl End {
    fn note(&self, how: Result<(), LabError>) {
        *self.how.lock().unwrap_or_else(PoisonError::into_inner) = Some(how);
        self.ended.notify_all();
    }

    fn wait(&self) -> Result<(), LabError> {
        let how = self.how.lock().unwrap_or_else(PoisonError::into_inner);
        let how = self.ended.wait_while(how, |how| how.is_none());
        how.unwrap_or_else(PoisonError::into_inner).clone().expect("the end was awaited")
    }
}

/// The router's thread, which can be stopped.
#[derive(Debug)]
pub(crate) struct RouterThread {
    wide_area: WideArea,
    thread: Option<JoinHandle<()>>,
}

impl RouterThread {
    /// Starts to forward packets between these devices, one for each region.
    pub(crate) fn start(options: &Options, devices: Vec<SyncDevice>) -> Result<Self, LabError> {
        assert_eq!(options.regions.len(), devices.len(), "there is a device for each region");
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| LabError::failed("can't make an eventfd", error))?;
        let (requests, received) = mpsc::channel();
        let wide_area = WideArea {
            regions: options.regions.clone().into(),
            requests,
            wake: Arc::new(wake),
            end: Arc::default(),
        };
        let late = Histogram::new_with_max(LATE_NANOS_MAX, LATE_DIGITS);
        let mut router = Router {
            regions: Arc::clone(&wide_area.regions),
            wan: Wan::new(devices.len(), options.seed, |from, to| options.shape(from, to)),
            pool: Pool::new(),
            has_offloads: options.offload,
            began: Instant::now(),
            late: late.expect("the bounds are constants"),
            stray: 0,
            is_stopped: false,
        };
        let (wake, end) = (Arc::clone(&wide_area.wake), Arc::clone(&wide_area.end));
        let run = move || {
            let ran = AssertUnwindSafe(|| router.run(&devices, &wake, &received));
            let panicked = |_| Err(LabError::Failed("the router of the lab panicked".to_owned()));
            end.note(catch_unwind(ran).unwrap_or_else(panicked));
        };
        let thread = std::thread::Builder::new().name("lab-router".to_owned()).spawn(run);
        let thread = thread.map_err(|error| LabError::failed("can't start a thread", error))?;
        Ok(Self { wide_area, thread: Some(thread) })
    }

    /// The WAN, to inspect and to change.
    pub(crate) fn wide_area(&self) -> &WideArea {
        &self.wide_area
    }

    /// Ends the thread, and closes the devices.
    pub(crate) fn stop(&mut self) -> Result<(), LabError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        // If the thread has already ended, the request fails, and the reason is returned below.
        let _ = self.wide_area.ask(|router| router.is_stopped = true);
        thread.join().expect("the thread catches panics");
        self.wide_area.end.wait()
    }
}

/// Needed for a lab that failed to start.
impl Drop for RouterThread {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!("{error}");
        }
    }
}

struct Router {
    regions: Arc<[String]>,
    wan: Wan<Packet>,
    pool: Pool,
    has_offloads: bool,
    began: Instant,
    late: Histogram<u64>,
    stray: u64,
    is_stopped: bool,
}

impl Router {
    /// Forwards packets until it is stopped, or a device fails.
    fn run(
        &mut self,
        devices: &[SyncDevice],
        wake: &OwnedFd,
        requests: &mpsc::Receiver<Request>,
    ) -> Result<(), LabError> {
        favour_this_thread();
        let mut watched: Vec<PollFd<'_>> =
            devices.iter().map(|device| PollFd::new(device, PollFlags::IN)).collect();
        watched.push(PollFd::new(wake, PollFlags::IN));
        while !self.is_stopped {
            match poll(&mut watched, self.until_next_due().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(LabError::failed("can't wait for packets", error)),
            }
            self.deliver(devices);
            for (at, device) in devices.iter().enumerate() {
                if !watched[at].revents().is_empty() {
                    self.read(RegionIndex(at), device, devices)?;
                }
            }
            if !watched[devices.len()].revents().is_empty() {
                // One wake-up may announce several requests.
                let _ = rustix::io::read(wake, &mut [0; 8]);
                requests.try_iter().for_each(|request| request(self));
            }
        }
        Ok(())
    }

    fn now(&self) -> Moment {
        Moment::default().after(self.began.elapsed())
    }

    /// The time until the next packet is due; `None` if none is in flight.
    fn until_next_due(&self) -> Option<Timespec> {
        let wait = self.wan.next_due()?.since(self.now());
        Some(Timespec::try_from(wait).expect("delays are at most a minute"))
    }

    /// Reads the packets that a region has sent.
    fn read(
        &mut self,
        from: RegionIndex,
        device: &SyncDevice,
        devices: &[SyncDevice],
    ) -> Result<(), LabError> {
        for _ in 0..READS_AT_ONCE {
            match device.recv(self.pool.next()) {
                Ok(len) => self.send(from, len),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let what = format!("the device of {} is missing", self.regions[from.0]);
                    return Err(LabError::failed(what, error));
                }
            }
            self.deliver(devices);
        }
        Ok(())
    }

    /// Passes the packet that has been read to the WAN.
    fn send(&mut self, from: RegionIndex, len: usize) {
        let heading = read_heading(self.pool.read(len), self.has_offloads);
        let places = self.wan.places();
        let to = heading.and_then(|heading| place_of(heading.to, places));
        let (Some(heading), Some(to)) = (heading, to.filter(|to| *to != from)) else {
            self.stray += 1;
            return;
        };
        let packet = self.pool.take(len);
        let size = Size {
            wire_bytes: heading.wire_bytes,
            packets: heading.packets,
            held_bytes: packet.held_bytes(),
        };
        if let Err((_, packet)) = self.wan.send(self.now(), (from, to), size, packet) {
            self.pool.give_back(packet);
        }
    }

    /// Delivers the packets that are due.
    fn deliver(&mut self, devices: &[SyncDevice]) {
        while let Some(due) = self.wan.next_due() {
            let now = self.now();
            if due > now {
                break;
            }
            let arrival = self.wan.deliver(now).expect("a packet is due");
            if devices[arrival.to.0].send(arrival.packet.bytes()).is_err() {
                // The device is down, or the kernel is short of memory.
                self.wan.refuse(arrival.from, arrival.to, arrival.size);
            }
            let late = now.since(due).as_nanos();
            self.late.saturating_record(u64::try_from(late).unwrap_or(u64::MAX));
            self.pool.give_back(arrival.packet);
        }
    }

    fn status(&self) -> WideAreaStatus {
        let regions = &self.regions;
        let mut links = Vec::new();
        pairs(regions.len(), |from, to| {
            let shape = self.wan.shape(from, to);
            links.push(LinkStatus {
                from: regions[from.0].clone(),
                to: regions[to.0].clone(),
                delay_ms: shape.delay.as_secs_f64() * 1_000.0,
                jitter_ms: shape.jitter.as_secs_f64() * 1_000.0,
                bits_per_sec: shape.bits_per_sec,
                loss: shape.loss,
                is_cut: self.wan.is_cut(from, to),
                counts: self.wan.counts(from, to),
            });
        });
        let late_us = [("p50", 0.5), ("p99", 0.99), ("max", 1.0)].map(|(name, quantile)| {
            (name.to_owned(), self.late.value_at_quantile(quantile) as f64 / 1_000.0)
        });
        let cpu_us = cpu_us_of_this_thread();
        WideAreaStatus { links, late_us: late_us.into(), stray: self.stray, cpu_us }
    }
}

/// CPU time of the calling thread so far, in microseconds.
fn cpu_us_of_this_thread() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// The network of all labs; each region has the subnet of its number, from 1.
const NETWORK: [u8; 2] = [10, 86];

/// The address of a region.
pub(crate) fn address_of(place: RegionIndex) -> Ipv4Addr {
    let number = u8::try_from(place.0 + 1).expect("the number of regions is small");
    Ipv4Addr::new(NETWORK[0], NETWORK[1], number, 1)
}

/// The network with all regions' addresses, in CIDR notation.
pub(crate) fn network() -> String {
    format!("{}.{}.0.0/16", NETWORK[0], NETWORK[1])
}

/// The region of an address.
fn place_of(address: Ipv4Addr, places: usize) -> Option<RegionIndex> {
    let [a, b, number, _] = address.octets();
    let at = usize::from(number).checked_sub(1)?;
    ([a, b] == NETWORK && at < places).then_some(RegionIndex(at))
}

/// Gives the thread precise wake-ups and priority over all programs in the regions, so that a busy
/// server does not delay their links. The kernel reserves some CPU time for other threads even
/// then.
fn favour_this_thread() {
    let slack = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let slack = slack.map_err(|error| LabError::failed("can't set the timer slack", error));
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let realtime = run(Command::new("chrt").args(["--rr", "--pid", PRIORITY, &thread]));
    if let Err(error) = slack.and(realtime) {
        tracing::warn!("the emulated WAN may delay packets too long on a busy machine: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_of_a_subnet_is_in_its_region_and_no_other_address_is_in_any() {
        for at in 0..crate::REGIONS_MAX {
            let [a, b, number, _] = address_of(RegionIndex(at)).octets();
            for host in [1, 2, 254] {
                let address = Ipv4Addr::new(a, b, number, host);
                assert_eq!(place_of(address, crate::REGIONS_MAX), Some(RegionIndex(at)));
            }
        }
        let others = ["10.86.0.1", "10.86.4.1", "10.87.1.1", "11.86.1.1", "224.0.0.1"];
        for other in others {
            assert_eq!(place_of(other.parse().unwrap(), 3), None, "{other}");
        }
    }
}
