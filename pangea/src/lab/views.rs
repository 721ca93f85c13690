//! The output about a lab.

use pangea_lab::LinkStatus;
use pangea_lab::control::Status;

use crate::table::{aligned, numbers};

/// Returns the message after the start of a lab, which explains how to use it.
pub fn start(status: &Status) -> String {
    let [a, b, ..] = &status.regions[..] else { unreachable!("a lab has at least two regions") };
    let variable = b.name.to_uppercase().replace('-', "_");
    let (a, b) = (&a.name, &b.name);
    format!(
        "lab {}\n\n{}\n\nround trips in ms\n{}\n\nIn another terminal:\n  sudo pangea lab run {a} \
         -- sh -c 'ping -c 3 $LAB_{variable}'\n  sudo pangea lab cut {a} {b}\n  sudo pangea lab \
         status\nCtrl-C ends the lab and everything that runs in it.",
        status.lab,
        regions(status),
        round_trips(status)
    )
}

/// Returns the full status of a lab.
pub fn status(status: &Status) -> String {
    let late = status.wide_area.late_us.iter().map(|(name, us)| format!("{name} {us:.0} us"));
    let late: Vec<String> = late.collect();
    format!(
        "lab {}, MTU {}\n\n{}\n\nround trips in ms\n{}\n\n{}\n\npackets arrived late by {}; {} had \
         an unknown destination",
        status.lab,
        status.mtu,
        regions(status),
        round_trips(status),
        links(status),
        late.join(", "),
        status.wide_area.stray
    )
}

fn regions(status: &Status) -> String {
    let columns = [("region", false), ("address", false), ("namespace", false), ("overruns", true)];
    let mut table = aligned(columns);
    for region in &status.regions {
        let overruns = region.overruns.to_string();
        let address = region.address.to_string();
        table.add_row([&region.name, &address, &region.namespace, &overruns]);
    }
    table.to_string()
}

fn link<'a>(status: &'a Status, from: &str, to: &str) -> Option<&'a LinkStatus> {
    status.wide_area.links.iter().find(|link| link.from == from && link.to == to)
}

fn round_trips(status: &Status) -> String {
    let names = || status.regions.iter().map(|region| region.name.as_str());
    let header: Vec<&str> = std::iter::once("").chain(names()).collect();
    let mut table = numbers(&header);
    for from in names() {
        let cells = names().map(|to| match (link(status, from, to), link(status, to, from)) {
            (Some(there), Some(back)) if there.is_cut || back.is_cut => "cut".to_owned(),
            (Some(there), Some(back)) => {
                // Rounded, because sums of two halves have spurious digits.
                let ms = ((there.delay_ms + back.delay_ms) * 1_000.0).round() / 1_000.0;
                ms.to_string()
            }
            // A region has no link to itself.
            _ => String::new(),
        });
        table.add_row(std::iter::once(from.to_owned()).chain(cells));
    }
    table.to_string()
}

fn links(status: &Status) -> String {
    let columns = ["from", "to", "packets", "MB", "arrived", "cut", "full", "lost", "refused"];
    let mut table = aligned(columns.into_iter().enumerate().map(|(at, name)| (name, at > 1)));
    for link in &status.wide_area.links {
        let counts = &link.counts;
        let megabytes = format!("{:.3}", counts.sent.bytes as f64 / 1e6);
        let arrived = [counts.delivered, counts.cut, counts.full, counts.lost, counts.refused];
        let ends = [link.from.clone(), link.to.clone()];
        let sent = [counts.sent.packets.to_string(), megabytes];
        let arrived = arrived.map(|tally| tally.packets.to_string());
        table.add_row(ends.into_iter().chain(sent).chain(arrived));
    }
    table.to_string()
}
