//! The headers of packets, and the memory pool of packets.
//!
//! With offloads, the kernel passes up to 64 KB of a connection at once. A header before them
//! (`virtio_net_hdr` of `linux/virtio_net.h`) describes how to split them into packets. They are
//! forwarded unchanged, because the receiving kernel accepts the same form.

use std::net::Ipv4Addr;

/// The length of the offload header before a packet.
pub(crate) const OFFLOAD_HEADER_BYTES: usize = 10;

/// The maximum length of a read from a device: the longest IP packet, and the offload header.
pub(crate) const READ_BYTES_MAX: usize = 65_536 + OFFLOAD_HEADER_BYTES;

const IPV4_HEADER_BYTES: usize = 20;
const UDP_HEADER_BYTES: usize = 8;
const TCP_HEADER_BYTES: usize = 20;

/// The headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heading {
    /// The destination.
    pub(crate) to: Ipv4Addr,
    /// Bytes on the link, after splitting into packets with headers.
    pub(crate) wire_bytes: u64,
    /// Packets on the link.
    pub(crate) packets: u32,
}

/// Parses the headers of bytes read from a device. `None` if they are not IPv4.
pub(crate) fn read_heading(bytes: &[u8], has_offloads: bool) -> Option<Heading> {
    let (offload, ip) =
        bytes.split_at_checked(if has_offloads { OFFLOAD_HEADER_BYTES } else { 0 })?;
    if ip.len() < IPV4_HEADER_BYTES || ip[0] >> 4 != 4 {
        return None;
    }
    let to = Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]);
    let whole = Heading { to, wire_bytes: ip.len() as u64, packets: 1 };
    let Some((headers, segment)) = segments(offload, ip) else { return Some(whole) };
    let data = ip.len().saturating_sub(headers);
    let packets = data.div_ceil(segment).max(1);
    let wire_bytes = (ip.len() + (packets - 1) * headers) as u64;
    Some(Heading { to, wire_bytes, packets: u32::try_from(packets).expect("a packet is small") })
}

/// The parameters of the split: the header bytes and the data bytes of each packet.
fn segments(offload: &[u8], ip: &[u8]) -> Option<(usize, usize)> {
    /// VIRTIO_NET_HDR_GSO_NONE, _TCPV4 and _UDP_L4, and the ECN flag.
    const NONE: u8 = 0;
    const TCP: u8 = 1;
    const UDP: u8 = 5;
    const ECN: u8 = 0x80;

    let kind = offload.get(1).map_or(NONE, |kind| kind & !ECN);
    let ip_header = usize::from(ip[0] & 0xf) * 4;
    let transport = match kind {
        TCP => usize::from(ip.get(ip_header + 12)? >> 4).max(TCP_HEADER_BYTES / 4) * 4,
        UDP => UDP_HEADER_BYTES,
        _ => return None,
    };
    let segment = usize::from(u16::from_ne_bytes([offload[4], offload[5]]));
    (segment > 0).then_some((ip_header + transport, segment))
}

/// A packet in a reusable buffer.
#[derive(Debug)]
pub(crate) struct Packet {
    buffer: Vec<u8>,
    len: usize,
}

impl Packet {
    /// The bytes read from the device.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    /// The memory that it occupies.
    pub(crate) fn held_bytes(&self) -> usize {
        self.buffer.capacity()
    }
}

/// The lengths of the smaller buffers: a packet of the usual MTU, and a few of them together.
const SMALL_BYTES: usize = 2 << 10;
const MIDDLE_BYTES: usize = 16 << 10;

/// The maximum number of free buffers of each size: some MB of each.
const SMALL_KEPT: usize = 8 << 10;
const MIDDLE_KEPT: usize = 1 << 10;
const LARGE_KEPT: usize = 512;

/// A pool of buffers for packets, in three sizes.
#[derive(Debug)]
pub(crate) struct Pool {
    /// The buffer for the next packet.
    next: Vec<u8>,
    small: Vec<Vec<u8>>,
    middle: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
}

impl Pool {
    pub(crate) fn new() -> Self {
        let next = vec![0; READ_BYTES_MAX];
        Self { next, small: Vec::new(), middle: Vec::new(), large: Vec::new() }
    }

    /// Returns the buffer for the next packet.
    pub(crate) fn next(&mut self) -> &mut [u8] {
        &mut self.next
    }

    /// Returns the bytes that have been read.
    pub(crate) fn read(&self, len: usize) -> &[u8] {
        &self.next[..len]
    }

    /// Takes the bytes that have been read as a packet. Large ones are not copied.
    pub(crate) fn take(&mut self, len: usize) -> Packet {
        let buffer = match len {
            0..=SMALL_BYTES => copied(&mut self.small, SMALL_BYTES, &self.next[..len]),
            _ if len <= MIDDLE_BYTES => copied(&mut self.middle, MIDDLE_BYTES, &self.next[..len]),
            _ => {
                let empty = self.large.pop().unwrap_or_else(|| vec![0; READ_BYTES_MAX]);
                std::mem::replace(&mut self.next, empty)
            }
        };
        Packet { buffer, len }
    }

    /// Returns a packet's buffer to the pool.
    pub(crate) fn give_back(&mut self, packet: Packet) {
        let (kept, most) = match packet.buffer.capacity() {
            READ_BYTES_MAX.. => (&mut self.large, LARGE_KEPT),
            MIDDLE_BYTES..READ_BYTES_MAX => (&mut self.middle, MIDDLE_KEPT),
            0..MIDDLE_BYTES => (&mut self.small, SMALL_KEPT),
        };
        if kept.len() < most {
            kept.push(packet.buffer);
        }
    }
}

fn copied(kept: &mut Vec<Vec<u8>>, capacity: usize, bytes: &[u8]) -> Vec<u8> {
    let mut buffer = kept.pop().unwrap_or_else(|| Vec::with_capacity(capacity));
    buffer.clear();
    buffer.extend_from_slice(bytes);
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An IP packet to 10.86.2.1 with `data` bytes after a TCP header of 32 bytes.
    fn tcp(data: usize) -> Vec<u8> {
        let mut ip = vec![0_u8; 20 + 32 + data];
        ip[0] = 0x45;
        ip[16..20].copy_from_slice(&[10, 86, 2, 1]);
        ip[20 + 12] = 8 << 4;
        ip
    }

    fn with_offload(kind: u8, segment: u16, ip: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0_u8; OFFLOAD_HEADER_BYTES];
        bytes[1] = kind;
        bytes[4..6].copy_from_slice(&segment.to_ne_bytes());
        bytes.extend_from_slice(ip);
        bytes
    }

    #[test]
    fn a_packet_is_as_long_as_it_is() {
        let to = Ipv4Addr::new(10, 86, 2, 1);
        let heading = Some(Heading { to, wire_bytes: 152, packets: 1 });
        assert_eq!(read_heading(&tcp(100), false), heading);
        assert_eq!(read_heading(&with_offload(0, 0, &tcp(100)), true), heading);
    }

    #[test]
    fn what_the_kernel_left_whole_is_counted_as_the_packets_that_it_is() {
        let count = |bytes: &[u8]| {
            let heading = read_heading(bytes, true).unwrap();
            (heading.packets, heading.wire_bytes)
        };
        // There are 3 packets with 52 bytes of headers each.
        assert_eq!(count(&with_offload(1, 1_448, &tcp(4_000))), (3, 4_000 + 3 * 52));
        assert_eq!(count(&with_offload(0x81, 1_448, &tcp(2_896))), (2, 2_896 + 2 * 52));
        // UDP's header is shorter, so 24 of the 32 bytes are data.
        assert_eq!(count(&with_offload(5, 512, &tcp(1_000))), (2, 1_024 + 2 * 28));
        assert_eq!(count(&with_offload(1, 0, &tcp(4_000))), (1, 4_052));
    }

    #[test]
    fn what_is_not_of_ipv4_has_no_heading() {
        let mut six = tcp(100);
        six[0] = 0x60;
        assert_eq!(read_heading(&six, false), None);
        assert_eq!(read_heading(&tcp(100)[..19], false), None);
        assert_eq!(read_heading(&[0; 9], true), None);
    }

    #[test]
    fn memory_is_used_again_and_packets_keep_their_bytes() {
        let mut pool = Pool::new();
        for len in [1, SMALL_BYTES, SMALL_BYTES + 1, MIDDLE_BYTES, MIDDLE_BYTES + 1, READ_BYTES_MAX]
        {
            pool.next()[..len].fill(7);
            let first = pool.take(len);
            pool.next()[..len].fill(8);
            assert!(first.bytes().len() == len && first.bytes().iter().all(|byte| *byte == 7));
            let (at, held) = (first.bytes().as_ptr(), first.held_bytes());
            pool.give_back(first);
            let second = pool.take(len);
            // A large buffer is reused as the read buffer.
            let again = if len > MIDDLE_BYTES { pool.take(len) } else { second };
            assert_eq!((again.bytes().as_ptr(), again.held_bytes()), (at, held), "{len}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..200), has_offloads: bool
        ) {
            if let Some(heading) = read_heading(&bytes, has_offloads) {
                prop_assert!(heading.packets >= 1);
                prop_assert!(heading.wire_bytes as usize + OFFLOAD_HEADER_BYTES >= bytes.len());
            }
        }
    }
}
