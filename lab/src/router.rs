//! The thread between the regions' devices and the wide area.
//!
//! One thread does everything: it reads what regions send, asks the wide area when it arrives, and
//! writes it when that time has come. It sleeps in `ppoll`, whose timeout is in nanoseconds. Nobody
//! else touches the wide area: what is asked of it from outside comes as a closure that the thread
//! runs between two packets.

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
use crate::wan::{Counts, Moment, Place, Shape, Size, Wan};

/// So many packets of a region are read before the next region's, and before timers are looked at.
const READS_AT_ONCE: usize = 64;

/// How lateness is kept: up to a minute, with two digits.
const LATE_NANOS_MAX: u64 = 60_000_000_000;
const LATE_DIGITS: u8 = 2;

/// The least of real-time priorities, which is before everything that has none. Niceness would do
/// less: it counts among the programs of one terminal alone, where the kernel groups by terminal.
const PRIORITY: &str = "1";

/// Something to do with the wide area, in its thread.
type Request = Box<dyn FnOnce(&mut Router) + Send>;

/// How a link is, and what became of its packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The region that sends.
    pub from: String,
    /// The region that receives.
    pub to: String,
    /// Delay of this direction, in milliseconds.
    pub delay_ms: f64,
    /// Jitter at the most, in milliseconds.
    pub jitter_ms: f64,
    /// Bits a second, where they are limited.
    pub bits_per_sec: Option<u64>,
    /// How likely it is that a packet is lost.
    pub loss: f64,
    /// Whether it is cut.
    pub is_cut: bool,
    /// What became of its packets.
    pub counts: Counts,
}

/// How the wide area is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WideAreaStatus {
    /// Both directions between every two regions.
    pub links: Vec<LinkStatus>,
    /// How much later than they should packets were handed over, in microseconds, by percentile.
    pub late_us: BTreeMap<String, f64>,
    /// Packets for no region of the lab, or not of IPv4. A region that talks to itself is none.
    pub stray: u64,
    /// Processor time that the router has taken, in microseconds.
    pub cpu_us: f64,
}

/// The wide area of a lab, to look at and to change while it runs.
#[derive(Clone, Debug)]
pub struct WideArea {
    regions: Arc<[String]>,
    requests: mpsc::Sender<Request>,
    wake: Arc<OwnedFd>,
    end: Arc<End>,
}

impl WideArea {
    /// Cuts both directions between two regions. What is on its way is lost.
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

    /// Heals everything.
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
            let others = (0..router.wan.places()).map(Place).filter(|other| *other != alone);
            others.for_each(|other| both(alone, other, |from, to| router.wan.cut(from, to)));
        })
    }

    /// Changes the round trip between two regions, for what is sent from now on.
    ///
    /// # Errors
    /// As [`WideArea::cut`], and when it is longer than any network's.
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

    /// How the wide area is at the moment.
    ///
    /// # Errors
    /// When the router has stopped.
    pub fn status(&self) -> Result<WideAreaStatus, LabError> {
        self.ask(|router| router.status())
    }

    /// Waits until no packets are carried any more.
    ///
    /// # Errors
    /// When that is so for another reason than that the lab was taken down.
    pub fn wait_until_it_ends(&self) -> Result<(), LabError> {
        self.end.wait()
    }

    /// Has the router's thread do something, and waits for it.
    fn ask<R: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Router) -> R + Send + 'static,
    ) -> Result<R, LabError> {
        let stopped = || LabError::Failed("the lab's router has stopped".to_owned());
        let (answer, answered) = mpsc::sync_channel(1);
        let request: Request = Box::new(move |router| {
            // Whoever asked may be gone.
            let _ = answer.send(what(router));
        });
        self.requests.send(request).map_err(|_| stopped())?;
        self.wake()?;
        answered.recv().map_err(|_| stopped())
    }

    fn wake(&self) -> Result<(), LabError> {
        match rustix::io::write(&self.wake, &1_u64.to_ne_bytes()) {
            // Full of wakes that nobody has looked at yet.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(LabError::failed("can't wake the router", error)),
        }
    }

    fn place(&self, region: &str) -> Result<Place, LabError> {
        let at = self.regions.iter().position(|name| name == region);
        at.map(Place).ok_or_else(|| {
            let known = self.regions.join(", ");
            LabError::Usage(format!("there is no region {region} in this lab: there are {known}"))
        })
    }

    fn two_places(&self, a: &str, b: &str) -> Result<(Place, Place), LabError> {
        if a == b {
            return Err(LabError::Usage(format!("{a} has no link to itself: name two regions")));
        }
        Ok((self.place(a)?, self.place(b)?))
    }
}

/// Both directions.
fn both(a: Place, b: Place, mut each: impl FnMut(Place, Place)) {
    each(a, b);
    each(b, a);
}

/// Every ordered pair.
fn pairs(places: usize, mut each: impl FnMut(Place, Place)) {
    for from in (0..places).map(Place) {
        (0..places).map(Place).filter(|to| *to != from).for_each(|to| each(from, to));
    }
}

/// How the router has ended, when it has.
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
        how.unwrap_or_else(PoisonError::into_inner).clone().expect("it was waited for")
    }
}

/// The router's thread, to be stopped.
#[derive(Debug)]
pub(crate) struct RouterThread {
    wide_area: WideArea,
    thread: Option<JoinHandle<()>>,
}

impl RouterThread {
    /// Starts to carry packets between these devices, of which there is one for each region.
    pub(crate) fn start(options: &Options, devices: Vec<SyncDevice>) -> Result<Self, LabError> {
        assert_eq!(options.regions.len(), devices.len(), "a device for each region");
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
            let panicked = |_| Err(LabError::Failed("the lab's router has panicked".to_owned()));
            end.note(catch_unwind(ran).unwrap_or_else(panicked));
        };
        let thread = std::thread::Builder::new().name("lab-router".to_owned()).spawn(run);
        let thread = thread.map_err(|error| LabError::failed("can't start a thread", error))?;
        Ok(Self { wide_area, thread: Some(thread) })
    }

    /// The wide area, to look at and to change.
    pub(crate) fn wide_area(&self) -> &WideArea {
        &self.wide_area
    }

    /// Ends the thread, and with it the devices.
    pub(crate) fn stop(&mut self) -> Result<(), LabError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        // Where it has stopped by itself there is nobody to ask, and it says below why.
        let _ = self.wide_area.ask(|router| router.is_stopped = true);
        thread.join().expect("the thread catches what panics");
        self.wide_area.end.wait()
    }
}

/// For a lab that did not come up.
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
    /// Carries packets until it is stopped, or a device fails.
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
                    self.read(Place(at), device, devices)?;
                }
            }
            if !watched[devices.len()].revents().is_empty() {
                // One wake may stand for several requests.
                let _ = rustix::io::read(wake, &mut [0; 8]);
                requests.try_iter().for_each(|request| request(self));
            }
        }
        Ok(())
    }

    fn now(&self) -> Moment {
        Moment::default().after(self.began.elapsed())
    }

    /// How long nothing is due. Nothing for as long as nothing is sent.
    fn until_next_due(&self) -> Option<Timespec> {
        let wait = self.wan.next_due()?.since(self.now());
        Some(Timespec::try_from(wait).expect("delays are no longer than a minute"))
    }

    /// Reads what a region has sent.
    fn read(
        &mut self,
        from: Place,
        device: &SyncDevice,
        devices: &[SyncDevice],
    ) -> Result<(), LabError> {
        for _ in 0..READS_AT_ONCE {
            match device.recv(self.pool.next()) {
                Ok(len) => self.send(from, len),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let what = format!("the device of {} is gone", self.regions[from.0]);
                    return Err(LabError::failed(what, error));
                }
            }
            self.deliver(devices);
        }
        Ok(())
    }

    /// Sends the packet that has been read on its way.
    fn send(&mut self, from: Place, len: usize) {
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

    /// Hands over what should have arrived.
    fn deliver(&mut self, devices: &[SyncDevice]) {
        while let Some(due) = self.wan.next_due() {
            let now = self.now();
            if due > now {
                break;
            }
            let arrival = self.wan.deliver(now).expect("it is due");
            if devices[arrival.to.0].send(arrival.packet.bytes()).is_err() {
                // Its device is down, or the kernel short of memory.
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

/// Processor time of the calling thread so far, in microseconds.
fn cpu_us_of_this_thread() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// The network of all labs; a region has the subnet of its number, from 1.
const NETWORK: [u8; 2] = [10, 86];

/// The address of a region.
pub(crate) fn address_of(place: Place) -> Ipv4Addr {
    let number = u8::try_from(place.0 + 1).expect("there are few regions");
    Ipv4Addr::new(NETWORK[0], NETWORK[1], number, 1)
}

/// All addresses of all regions, as a route is written.
pub(crate) fn network() -> String {
    format!("{}.{}.0.0/16", NETWORK[0], NETWORK[1])
}

/// The region that an address is in.
fn place_of(address: Ipv4Addr, places: usize) -> Option<Place> {
    let [a, b, number, _] = address.octets();
    let at = usize::from(number).checked_sub(1)?;
    ([a, b] == NETWORK && at < places).then_some(Place(at))
}

/// Makes the thread one that is woken at once, and before all that runs in the regions: the ways
/// between them don't become longer because a server is busy. The kernel keeps some time for
/// others, whatever a thread like this does.
fn favour_this_thread() {
    let slack = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let slack = slack.map_err(|error| LabError::failed("can't set a timer's slack", error));
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let realtime = run(Command::new("chrt").args(["--rr", "--pid", PRIORITY, &thread]));
    if let Err(error) = slack.and(realtime) {
        tracing::warn!("the wide area may be late where the machine is busy: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_of_a_subnet_is_in_its_region_and_no_other_address_is_in_any() {
        for at in 0..crate::REGIONS_MAX {
            let [a, b, number, _] = address_of(Place(at)).octets();
            for host in [1, 2, 254] {
                let address = Ipv4Addr::new(a, b, number, host);
                assert_eq!(place_of(address, crate::REGIONS_MAX), Some(Place(at)));
            }
        }
        let others = ["10.86.0.1", "10.86.4.1", "10.87.1.1", "11.86.1.1", "224.0.0.1"];
        for other in others {
            assert_eq!(place_of(other.parse().unwrap(), 3), None, "{other}");
        }
    }
}
