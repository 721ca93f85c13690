//! The profiles of GeoGauss.

use pangea_core::guarantee::Isolation;
use pangea_core::planted::Bug;
use pangea_core::time::Span;
use pangea_protocols::geogauss::{Ack, Options};
use pangea_sim::Settings;

use super::Profile;
use crate::{geogauss_drawn, kinds};

impl Profile {
    /// The profiles that are tried first for a bug in GeoGauss.
    pub(super) fn of_bug_in_geogauss(bug: Bug) -> &'static [Self] {
        match bug {
            Bug::SealForgotten
            | Bug::ReservedAfterReport
            | Bug::JoinsTooEarly
            | Bug::EpochReopened => &[Self::CutOff],
            Bug::EofOfNewerView => &[Self::CutOff, Self::Drawn],
            Bug::FreshWithoutAsking => &[Self::LeftIdle],
            Bug::GuardsSkipped => &[Self::References],
            Bug::CachesNotAsked | Bug::KeptAfterSeal => &[Self::Cached],
            Bug::DeltaLastWins | Bug::DeltaNotMet => &[Self::Tallies],
            Bug::LoggedEarly => &[Self::Mute],
            Bug::LossUntold => &[Self::Unheard],
            Bug::LostReadCounts => &[Self::ToldToOne],
            _ => &[Self::Drawn],
        }
    }

    /// Runs of GeoGauss, which draws its own options.
    pub(super) fn of_geogauss(self, seed: u64) -> Settings {
        let any = geogauss_drawn::settings(seed, "list-append");
        match self {
            Self::CutOff => {
                let rules = Some(kinds::cut_off(seed));
                let duration = Span::from_ms(6_000);
                let clients_per_node = if seed.is_multiple_of(2) { 6 } else { 1 };
                Settings { rules, duration, clients_per_node, ..any }
            }
            Self::LeftIdle => {
                let rules = Some(kinds::left_idle(seed));
                let (duration, one_way_max) = (Span::from_ms(9_000), Span::from_ms(1));
                Settings { rules, duration, one_way_max, lists: 2, ..any }
            }
            Self::References => {
                let weaker =
                    [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Snapshot];
                let isolation = weaker[(seed % 3) as usize].into();
                let workload = "references".to_owned();
                Settings { workload, isolation, clients_per_node: 6, ..any }
            }
            Self::Tallies => {
                let isolation = Isolation::ReadCommitted.into();
                let workload = "tallies".to_owned();
                Settings { workload, isolation, clients_per_node: 6, ..any }
            }
            Self::Mute => {
                let rules = Some(kinds::mute(seed));
                Settings { rules, clients_per_node: 3, one_way_max: Span::from_ms(10), ..any }
            }
            Self::Unheard => {
                let rules = Some(kinds::unheard(seed));
                Settings { rules, ..geogauss_drawn::settings(seed, "smallbank") }
            }
            Self::ToldToOne => {
                let rules = Some(kinds::told_to_one(seed));
                let (duration, one_way_max) = (Span::from_ms(8_000), Span::from_ms(5));
                Settings { rules, nodes: 5, lists: 3, duration, one_way_max, ..any }
            }
            Self::Cached => {
                let any = geogauss_drawn::mute(seed, "list-append");
                Settings { may_lose: false, ..any }
            }
            _ => geogauss_drawn::drawn(seed).0,
        }
    }

    pub(super) fn options_of_geogauss(self, seed: u64) -> Options {
        match self {
            Self::Cached => geogauss_drawn::cached(),
            Self::Mute | Self::Unheard | Self::ToldToOne => {
                Options { ack: Ack::Merged, ..geogauss_drawn::default() }
            }
            _ => geogauss_drawn::drawn(seed).1,
        }
    }
}
