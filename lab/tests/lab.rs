//! Tests of real labs, with namespaces, devices and programs.
//!
//! They need root, and fail with the reason without it. Times are only checked against lower
//! bounds, because a busy machine makes everything later, and nothing earlier.

#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pangea_lab::control::{self, Request};
use pangea_lab::{Lab, LabError, LinkStatus, Options, Region, clear};

/// Timeout for events that must happen.
const PATIENCE: Duration = Duration::from_secs(20);

const NAMES: [&str; 3] = ["us-east", "eu-west", "ap-northeast"];

/// Serialises the tests, because each lab removes the remains of dead ones, which one test
/// inspects.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn up(options: &Options) -> Lab {
    Lab::up(options).unwrap_or_else(|error| panic!("{error} (tests of the lab need root)"))
}

/// 10 ms between adjacent regions, 20 ms between the first and the last.
fn round_trip(a: &str, b: &str) -> Duration {
    let place = |name| NAMES.iter().position(|it| *it == name).unwrap();
    Duration::from_millis(10) * u32::try_from(place(a).abs_diff(place(b))).unwrap()
}

fn options() -> Options {
    Options::new(NAMES, round_trip)
}

fn udp(region: &Region) -> UdpSocket {
    let socket = region.enter(|| UdpSocket::bind((region.address(), 0))).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn link(lab: &Lab, from: &str, to: &str) -> LinkStatus {
    let links = lab.wide_area().status().unwrap().links;
    links.into_iter().find(|link| link.from == from && link.to == to).unwrap()
}

/// Waits until a link's status satisfies `is_so`.
fn wait_until(lab: &Lab, (from, to): (&str, &str), is_so: impl Fn(&LinkStatus) -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so(&link(lab, from, to)) {
        assert!(Instant::now() < end, "still {:?}", link(lab, from, to));
        std::thread::yield_now();
    }
}

/// Runs a program in a region, and returns its output.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

/// The remains of a lab on this machine.
fn remains(lab: &str) -> Vec<String> {
    let names = |folder: &str| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let mut all = [names("/run/netns"), names("/run/pangea-lab")].concat();
    all.retain(|name| name == lab || name.starts_with(&format!("pangea-{lab}-")));
    all
}

#[test]
fn no_round_trip_is_shorter_than_the_matrix_says() {
    let _alone = alone();
    let lab = up(&options());
    let sockets: Vec<UdpSocket> = lab.regions().iter().map(udp).collect();
    for (a, from) in NAMES.iter().zip(&sockets) {
        for (b, to) in NAMES.iter().zip(&sockets).filter(|(b, _)| *b != a) {
            for number in 0..10_u8 {
                let (began, mut bytes) = (Instant::now(), [0]);
                from.send_to(&[number], to.local_addr().unwrap()).unwrap();
                let (_, sender) = to.recv_from(&mut bytes).unwrap();
                assert_eq!(sender, from.local_addr().unwrap(), "addresses are not translated");
                to.send_to(&bytes, sender).unwrap();
                from.recv_from(&mut bytes).unwrap();
                let took = began.elapsed();
                assert_eq!(bytes, [number]);
                assert!(took >= round_trip(a, b), "{a} to {b} took {took:?}");
            }
        }
    }
    // Packets within a region are neither delayed nor counted.
    let before = lab.wide_area().status().unwrap();
    let own = sockets[0].local_addr().unwrap();
    sockets[0].send_to(&[1], own).unwrap();
    assert_eq!(sockets[0].recv_from(&mut [0]).unwrap().1, own);
    assert_eq!(lab.wide_area().status().unwrap().links, before.links);
    lab.down().unwrap();
}

#[test]
fn a_round_trip_that_is_changed_holds_from_then_on() {
    let _alone = alone();
    let lab = up(&options());
    lab.wide_area().set_round_trip(NAMES[0], NAMES[1], Duration::from_millis(80)).unwrap();
    let (from, to) = (udp(&lab.regions()[0]), udp(&lab.regions()[1]));
    let began = Instant::now();
    from.send_to(&[1], to.local_addr().unwrap()).unwrap();
    to.recv_from(&mut [0]).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(40), "{:?}", began.elapsed());
    assert_eq!(link(&lab, NAMES[1], NAMES[0]).delay_ms, 40.0);
    assert_eq!(link(&lab, NAMES[1], NAMES[2]).delay_ms, 5.0);
}

#[test]
fn nothing_passes_a_cut_and_everything_does_when_it_is_healed() {
    let _alone = alone();
    let lab = up(&options());
    let [a, b, c] = NAMES;
    let wan = lab.wide_area();
    let sockets: Vec<UdpSocket> = lab.regions().iter().map(udp).collect();
    let send = |from: usize, to: usize, number: u8| {
        sockets[from].send_to(&[number], sockets[to].local_addr().unwrap()).unwrap();
    };
    // A link keeps its order: if the first packet had passed, it would arrive first.
    let first_at = |to: usize| {
        let mut bytes = [0];
        sockets[to].recv_from(&mut bytes).unwrap();
        bytes[0]
    };
    wan.cut(a, b).unwrap();
    send(0, 1, 1);
    send(1, 0, 1);
    for link in [(a, b), (b, a)] {
        wait_until(&lab, link, |link| link.is_cut && link.counts.cut.packets == 1);
    }
    // Other links are not affected.
    send(0, 2, 2);
    assert_eq!(first_at(2), 2);
    wan.heal(a, b).unwrap();
    send(0, 1, 3);
    send(1, 0, 3);
    assert_eq!((first_at(1), first_at(0)), (3, 3));

    wan.isolate(b).unwrap();
    send(0, 1, 4);
    send(2, 1, 4);
    wait_until(&lab, (a, b), |link| link.counts.cut.packets == 2);
    wait_until(&lab, (c, b), |link| link.counts.cut.packets == 1);
    send(0, 2, 5);
    assert_eq!(first_at(2), 5);
    wan.heal_all().unwrap();
    send(0, 1, 6);
    assert_eq!(first_at(1), 6);
    assert_eq!(link(&lab, a, b).counts.delivered.packets, 2);
    assert_eq!(link(&lab, a, b).counts.dropped().packets, 2);
    lab.down().unwrap();
}

/// The numbers of datagrams in the order of arrival.
fn arrivals(options: &Options) -> Vec<u8> {
    let lab = up(options);
    let (from, to) = (udp(&lab.regions()[0]), udp(&lab.regions()[1]));
    for number in 0..200 {
        from.send_to(&[number], to.local_addr().unwrap()).unwrap();
    }
    let arrived = (0..200).map(|_| {
        let mut bytes = [0];
        to.recv_from(&mut bytes).unwrap();
        bytes[0]
    });
    arrived.collect()
}

#[test]
fn jitter_keeps_the_order_unless_packets_may_overtake_each_other() {
    let _alone = alone();
    let mut options = Options { jitter: Duration::from_millis(30), ..options() };
    let in_order: Vec<u8> = (0..200).collect();
    assert_eq!(arrivals(&options), in_order);
    options.may_overtake = true;
    let mut arrived = arrivals(&options);
    assert_ne!(arrived, in_order, "the jitter exceeds the time between two packets");
    arrived.sort_unstable();
    assert_eq!(arrived, in_order);
}

/// Sends bytes over TCP, and returns the time until all had arrived. Checks that they are the bytes
/// that were sent.
fn transfer(lab: &Lab, bytes: usize) -> Duration {
    let (from, to) = (&lab.regions()[0], &lab.regions()[1]);
    let listener = to.enter(|| TcpListener::bind((to.address(), 0))).unwrap().unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let data: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    let began = Instant::now();
    let mut sender = from.enter(|| TcpStream::connect(address)).unwrap().unwrap();
    let mut received = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sender.write_all(&data).unwrap();
            sender.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_to_end(&mut received).unwrap();
    });
    assert!(received == data, "{} of {bytes} bytes arrived, or different ones", received.len());
    began.elapsed()
}

#[test]
fn no_more_than_the_bandwidth_passes_with_and_without_offloads() {
    let _alone = alone();
    for offload in [true, false] {
        let bits_per_sec = 20_000_000;
        let options = Options { bits_per_sec: Some(bits_per_sec), offload, ..options() };
        let lab = up(&options);
        let bytes = 1_000_000;
        let took = transfer(&lab, bytes);
        let least = Duration::from_secs_f64(bytes as f64 * 8.0 / bits_per_sec as f64);
        assert!(took >= least, "{took:?} is faster than {least:?} (offloads: {offload})");
        let sent = link(&lab, NAMES[0], NAMES[1]).counts.delivered;
        // Each packet has at most 1,500 bytes, and its headers are counted.
        assert!(sent.packets >= 1_000_000 / 1_448, "{sent:?} (offloads: {offload})");
        assert!(sent.bytes >= 1_000_000 + 40 * sent.packets, "{sent:?} (offloads: {offload})");
        lab.down().unwrap();
    }
}

#[test]
fn tcp_passes_what_is_lossy_short_of_a_queue_or_of_another_mtu() {
    let _alone = alone();
    let lossy = Options { loss: 0.02, ..options() };
    let small = Options { bits_per_sec: Some(50_000_000), queue_bytes: Some(20_000), ..options() };
    let mtus = [576, 9_000, 65_000].map(|mtu| Options { mtu, offload: mtu == 9_000, ..options() });
    for options in [lossy, small].into_iter().chain(mtus) {
        let lab = up(&options);
        transfer(&lab, 2_000_000);
        let link = link(&lab, NAMES[0], NAMES[1]);
        assert_eq!(options.loss > 0.0, link.counts.lost.packets > 0, "{link:?}");
        assert_eq!(options.queue_bytes.is_some(), link.counts.full.packets > 0, "{link:?}");
        lab.down().unwrap();
    }
}

#[test]
fn programs_run_in_their_region_know_the_others_and_give_their_exit_codes() {
    let _alone = alone();
    let lab = up(&options());
    let region = lab.region("eu-west").unwrap();
    let addresses = output(region.command("ip").args(["-o", "address"]));
    assert!(addresses.contains("wan0    inet 10.86.2.1/24"), "{addresses}");
    assert!(!addresses.contains("inet6 fe80"), "{addresses}");
    let reported = output(region.command("sh").args(["-c", "echo $LAB_REGION $LAB_US_EAST"]));
    assert_eq!(reported, "eu-west 10.86.1.1\n");
    let status = region.command("sh").args(["-c", "exit 7"]).status().unwrap();
    assert_eq!(status.code(), Some(7));
    let nowhere = lab.region("atlantis").unwrap_err();
    assert_eq!(nowhere.to_string(), "unknown region atlantis in this lab");
    lab.down().unwrap();
}

#[test]
fn labs_side_by_side_do_not_meet() {
    let _alone = alone();
    let labs = [up(&options()), up(&options())];
    let sockets: Vec<UdpSocket> = labs
        .iter()
        .flat_map(|lab| {
            let at = |region: &Region, port| (region.address(), port);
            let [a, b, _] = lab.regions() else { panic!("three regions") };
            [
                a.enter(|| UdpSocket::bind(at(a, 700))).unwrap().unwrap(),
                b.enter(|| UdpSocket::bind(at(b, 700))).unwrap().unwrap(),
            ]
        })
        .collect();
    sockets.iter().for_each(|socket| socket.set_read_timeout(Some(PATIENCE)).unwrap());
    for (lab, number) in [(0, 1), (1, 2)] {
        sockets[2 * lab].send_to(&[number], "10.86.2.1:700").unwrap();
        let mut bytes = [0];
        sockets[2 * lab + 1].recv_from(&mut bytes).unwrap();
        assert_eq!(bytes, [number]);
    }
    let mut both: Vec<&str> = labs.iter().map(Lab::id).collect();
    let running = control::running().unwrap();
    assert!(both.iter().all(|id| running.iter().any(|it| it == id)), "{running:?}");
    let Err(LabError::Usage(which)) = control::find(None) else { panic!("{running:?}") };
    assert!(which.contains("several labs are running"), "{which}");
    assert_eq!(control::find(Some(both[0])), Ok(both.remove(0).to_owned()));
}

#[test]
fn a_lab_answers_whoever_asks_over_its_socket() {
    let _alone = alone();
    let lab = up(&options());
    let ask = |request| control::ask(lab.id(), &request);
    let [a, b, _] = NAMES.map(str::to_owned);
    let status = ask(Request::Status).unwrap();
    assert_eq!((status.lab.as_str(), status.mtu), (lab.id(), 1_500));
    let names: Vec<&str> = status.regions.iter().map(|region| region.name.as_str()).collect();
    assert_eq!((names, status.wide_area.links.len()), (NAMES.to_vec(), 6));
    let cut = ask(Request::Cut { a: a.clone(), b: b.clone() }).unwrap();
    assert_eq!(cut.wide_area.links.iter().filter(|link| link.is_cut).count(), 2);
    let alone = ask(Request::Isolate { region: a.clone() }).unwrap();
    assert_eq!(alone.wide_area.links.iter().filter(|link| link.is_cut).count(), 4);
    let healed = ask(Request::Heal { a: a.clone(), b: b.clone() }).unwrap();
    assert_eq!(healed.wide_area.links.iter().filter(|link| link.is_cut).count(), 2);
    let healed = ask(Request::HealAll).unwrap();
    assert!(healed.wide_area.links.iter().all(|link| !link.is_cut));
    let trip = Duration::from_millis(30);
    let longer = ask(Request::RoundTrip { a: a.clone(), b: b.clone(), trip }).unwrap();
    assert_eq!(longer.wide_area.links[0].delay_ms, 15.0);
    let wrong = [
        (Request::Isolate { region: "atlantis".into() }, "unknown region atlantis"),
        (Request::Cut { a: a.clone(), b: a.clone() }, "no link to itself"),
        (Request::RoundTrip { a, b, trip: Duration::from_secs(90) }, "too long"),
    ];
    for (request, part) in wrong {
        let Err(LabError::Usage(message)) = ask(request) else { panic!("{part}") };
        assert!(message.contains(part), "{message}");
    }
    let id = lab.id().to_owned();
    lab.down().unwrap();
    assert!(control::ask(&id, &Request::Status).is_err());
}

/// Starts a program that outlives its parents and its terminal, and returns its process id.
fn start_daemon(region: &Region) -> String {
    // The program also ignores all signals that can be ignored.
    let script = "trap '' HUP TERM; (setsid sleep 1000 >/dev/null 2>&1 & echo $!)";
    output(region.command("sh").args(["-c", script])).trim().to_owned()
}

/// Whether a process is running. One that has ended may remain as a zombie.
fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[test]
fn nothing_is_left_when_a_lab_ends_by_a_panic_too() {
    let _alone = alone();
    let mut left = Vec::new();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let lab = up(&options());
        left.push((lab.id().to_owned(), start_daemon(&lab.regions()[1])));
        assert_eq!(remains(lab.id()).len(), 4, "three namespaces and a directory");
        assert!(is_running(&left[0].1));
        lab.region("atlantis").expect("an intentional panic");
    }));
    assert!(panicked.is_err());
    let (lab, daemon) = &left[0];
    assert_eq!(remains(lab), [""; 0]);
    assert!(!is_running(daemon));
}

#[test]
fn when_a_region_is_taken_away_whoever_waits_is_told() {
    let _alone = alone();
    let lab = up(&options());
    let region = lab.regions()[1].clone();
    let device = region.command("ip").args(["link", "delete", "wan0"]).status().unwrap();
    assert!(device.success());
    let why = lab.wide_area().wait_until_it_ends().unwrap_err();
    assert!(why.to_string().contains("the device of eu-west is missing"), "{why}");
    assert!(lab.wide_area().status().is_err());
    let id = lab.id().to_owned();
    assert_eq!(lab.down(), Err(why));
    assert_eq!(remains(&id), [""; 0]);
}

/// Set for the child process that is killed.
const CHILD: &str = "PANGEA_LAB_TEST_CHILD";

#[test]
fn what_a_killed_lab_leaves_is_cleared_and_no_lab_that_lives() {
    if std::env::var_os(CHILD).is_some() {
        let lab = up(&options());
        let daemon = start_daemon(&lab.regions()[0]);
        println!("\nup: {} {daemon}", lab.id());
        let _ = std::io::stdin().read(&mut [0]);
        panic!("the process should have been killed");
    }
    let _alone = alone();
    let living = up(&options());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_a_killed_lab_leaves_is_cleared_and_no_lab_that_lives"])
        .arg("--nocapture")
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let reported = lines.find_map(|line| line.strip_prefix("up: ").map(str::to_owned));
    child.kill().unwrap();
    child.wait().unwrap();
    let reported = reported.expect("the child's lab has started");
    let (killed, daemon) = reported.split_once(' ').unwrap();
    assert_eq!(remains(killed).len(), 4);
    assert!(is_running(daemon));
    assert!(!control::running().unwrap().iter().any(|id| id == killed));

    let cleared = clear().unwrap();
    assert!(cleared.labs.iter().any(|id| id == killed), "{cleared:?}");
    assert!(cleared.namespaces >= 3 && cleared.processes >= 1, "{cleared:?}");
    assert_eq!(remains(killed), [""; 0]);
    assert!(!is_running(daemon));
    assert_eq!(remains(living.id()).len(), 4);
    assert!(Path::new("/run/netns").join(living.regions()[0].namespace()).exists());
    living.wide_area().status().unwrap();
    living.down().unwrap();
}
