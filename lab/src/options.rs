//! The options of a lab.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::LabError;
use crate::wan::{RegionIndex, Shape};

/// The maximum number of regions. A region is the third byte of an address, and one router checks
/// all of them for each packet.
pub const REGIONS_MAX: usize = 32;

/// A longer round trip than any network's, so that a wrong unit is noticed.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(60);

/// The minimum that IPv4 requires of every link, and the maximum of a device.
const MTU: std::ops::RangeInclusive<u16> = 576..=65_000;

/// The maximum length of a region's name, which is part of a namespace's file name.
const NAME_BYTES_MAX: usize = 40;

/// The default time that a full queue takes to empty, as in typical routers.
const QUEUE: Duration = Duration::from_millis(100);

/// The minimum size of the default queue, so that it has room for everything that the kernel sends
/// at once.
const QUEUE_BYTES_MIN: u64 = 256 << 10;

/// The options of a lab. Two labs with the same options treat the same packets at the same times
/// identically.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Names of the regions: lower-case letters, digits and `-`.
    pub regions: Vec<String>,
    /// The round-trip times from each region to each region. The delay of each direction is half of
    /// it.
    pub round_trips: Vec<Vec<Duration>>,
    /// The maximum additional delay of a packet in each direction.
    pub jitter: Duration,
    /// The bandwidth of each direction between two regions in bit/s; `None` for no limit.
    pub bits_per_sec: Option<u64>,
    /// The queue of a busy link in bytes; `None` for 100 ms of its bandwidth.
    pub queue_bytes: Option<u64>,
    /// The probability that a packet is lost.
    pub loss: f64,
    /// Whether jitter may reorder the packets of a link.
    pub may_overtake: bool,
    /// The MTU of the links.
    pub mtu: u16,
    /// Whether several packets of one connection may be handled as one, as network cards do.
    /// Without it each packet is handled separately, as on the link; with it the throughput is much
    /// higher.
    pub offload: bool,
    /// The seed of jitter and loss.
    pub seed: u64,
}

impl Options {
    /// Options for regions with the round-trip times returned by a function, without jitter, loss
    /// and bandwidth limits.
    pub fn new(
        regions: impl IntoIterator<Item = impl Into<String>>,
        round_trip: impl Fn(&str, &str) -> Duration,
    ) -> Self {
        let regions: Vec<String> = regions.into_iter().map(Into::into).collect();
        let from = |a: &String| regions.iter().map(|b| round_trip(a, b)).collect();
        let round_trips = regions.iter().map(from).collect();
        Self {
            regions,
            round_trips,
            jitter: Duration::ZERO,
            bits_per_sec: None,
            queue_bytes: None,
            loss: 0.0,
            may_overtake: false,
            mtu: 1_500,
            offload: true,
            seed: 1,
        }
    }

    /// Checks the options.
    ///
    /// # Errors
    /// When they are invalid.
    pub fn check(&self) -> Result<(), LabError> {
        let usage = |message| Err(LabError::Usage(message));
        let count = self.regions.len();
        if !(2..=REGIONS_MAX).contains(&count) {
            return usage(format!("there must be from 2 to {REGIONS_MAX} regions, not {count}"));
        }
        for name in &self.regions {
            check_name(name)?;
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.regions.iter().find(|name| !seen.insert(*name)) {
            return usage(format!("region {twice} is listed twice"));
        }
        let is_square = self.round_trips.len() == count
            && self.round_trips.iter().all(|row| row.len() == count);
        if !is_square {
            return usage(format!("the round trips must be {count} rows of {count} values"));
        }
        self.round_trips.iter().flatten().try_for_each(|trip| check_round_trip(*trip))?;
        check_round_trip(self.jitter)?;
        if self.bits_per_sec == Some(0) {
            return usage("a bandwidth of 0 is not allowed: cut the links instead".to_owned());
        }
        if !(0.0..=1.0).contains(&self.loss) {
            return usage(format!("a loss of {} is not allowed: must be from 0 to 1", self.loss));
        }
        if !MTU.contains(&self.mtu) {
            let (least, most) = (MTU.start(), MTU.end());
            return usage(format!(
                "an MTU of {} is not allowed: must be from {least} to {most}",
                self.mtu
            ));
        }
        Ok(())
    }

    /// The properties of the link from one region to another.
    pub(crate) fn shape(&self, from: RegionIndex, to: RegionIndex) -> Shape {
        let of_time = |bits| u128::from(bits) * QUEUE.as_millis() / 8_000;
        let of_bandwidth =
            self.bits_per_sec.map_or(0, |bits| u64::try_from(of_time(bits)).unwrap_or(u64::MAX));
        Shape {
            delay: self.round_trips[from.0][to.0] / 2,
            jitter: self.jitter,
            bits_per_sec: self.bits_per_sec,
            queue_bytes: self.queue_bytes.unwrap_or(of_bandwidth.max(QUEUE_BYTES_MIN)),
            loss: self.loss,
            may_overtake: self.may_overtake,
        }
    }
}

/// Checks a round-trip time.
pub(crate) fn check_round_trip(trip: Duration) -> Result<(), LabError> {
    if trip > ROUND_TRIP_MAX {
        let most = ROUND_TRIP_MAX.as_secs();
        return Err(LabError::Usage(format!("{trip:?} is too long: the limit is {most} s")));
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), LabError> {
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_letter) {
        return Err(LabError::Usage(format!(
            "{name:?} is not a valid region name: use lower-case letters, digits and -, at most \
             {NAME_BYTES_MAX}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Options {
        Options::new(["us-east", "eu-west"], |a, b| Duration::from_millis(u64::from(a != b) * 70))
    }

    #[test]
    fn half_a_round_trip_is_the_delay_and_a_queue_holds_a_tenth_of_a_second() {
        let mut options = two();
        assert_eq!(options.check(), Ok(()));
        let shape = options.shape(RegionIndex(0), RegionIndex(1));
        assert_eq!((shape.delay, shape.bits_per_sec), (Duration::from_millis(35), None));
        options.bits_per_sec = Some(1_000_000_000);
        assert_eq!(options.shape(RegionIndex(1), RegionIndex(0)).queue_bytes, 12_500_000);
        options.bits_per_sec = Some(1_000_000);
        assert_eq!(options.shape(RegionIndex(1), RegionIndex(0)).queue_bytes, QUEUE_BYTES_MIN);
        options.queue_bytes = Some(3);
        assert_eq!(options.shape(RegionIndex(1), RegionIndex(0)).queue_bytes, 3);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_reason() {
        let wrong = |change: fn(&mut Options), part: &str| {
            let mut options = two();
            change(&mut options);
            let Err(LabError::Usage(message)) = options.check() else { panic!("{options:?}") };
            assert!(message.contains(part), "{message}");
        };
        wrong(|it| it.regions.truncate(1), "from 2 to 32 regions, not 1");
        wrong(|it| it.regions[1] = "us-east".into(), "us-east is listed twice");
        wrong(|it| it.regions[1] = "../etc".into(), "not a valid region name");
        wrong(|it| it.regions[1] = "a".repeat(41), "not a valid region name");
        wrong(|it| it.round_trips[0].truncate(1), "2 rows of 2 values");
        wrong(|it| it.round_trips[0][1] = Duration::from_secs(61), "too long");
        wrong(|it| it.bits_per_sec = Some(0), "cut the links");
        wrong(|it| it.loss = 1.5, "from 0 to 1");
        wrong(|it| it.loss = f64::NAN, "from 0 to 1");
        wrong(|it| it.mtu = 500, "from 576");
    }
}
