//! Elections on a real service, reached through relays that can be cut.

use downpour_coordination::{Member, Register, Version};
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const LEASE: Duration = Duration::from_secs(1);
/// A machine that is busy gets this far sooner; a hang ends here.
const PATIENCE: Duration = Duration::from_secs(30);

/// Stands between a member and the service.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    is_cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    pub(crate) fn to(service: &str) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay {
            address: listener.local_addr().unwrap(),
            is_cut: Arc::default(),
            open: Arc::default(),
        };
        let (service, is_cut, open) =
            (service.to_owned(), relay.is_cut.clone(), relay.open.clone());
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(&service) else {
                    continue;
                };
                open.lock()
                    .unwrap()
                    .extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                let ends = [
                    (near.try_clone().unwrap(), far.try_clone().unwrap()),
                    (far, near),
                ];
                for (mut from, mut to) in ends {
                    thread::spawn(move || {
                        let mut buffer = [0; 1 << 14];
                        while let Ok(n @ 1..) = from.read(&mut buffer) {
                            if to.write_all(&buffer[..n]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        relay
    }

    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn heal(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }
}

/// A member with its way to the service.
struct Party {
    relay: Relay,
    member: Option<Member>,
    name: String,
}

/// The chiefs among the members. Read one after the other, it may miss one but never invent two: each says
/// what is so at its own moment, so two are only reported if they are seen again.
fn chiefs(parties: &[Party]) -> Vec<(usize, u64)> {
    let held = |p: &Party| p.member.as_ref()?.office().epoch();
    let all = parties.iter().enumerate();
    all.filter_map(|(i, p)| Some((i, held(p)?))).collect()
}

/// Waits for a chief that is not in an epoch up to `after`.
fn next_chief(parties: &[Party], after: u64) -> (usize, u64) {
    let begin = Instant::now();
    loop {
        let now = chiefs(parties);
        if let Some(chief) = now.iter().find(|(_, epoch)| *epoch > after) {
            return *chief;
        }
        assert!(begin.elapsed() < PATIENCE, "no chief after epoch {after}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Each chief writes its epoch into a register that refuses older ones; all epochs that were written, in order.
fn write_fenced(register: &dyn Register, epoch: u64) -> bool {
    loop {
        let (version, value) = register.read("witness").unwrap();
        let text = String::from_utf8(value).unwrap();
        let last = text
            .rsplit(' ')
            .next()
            .and_then(|t| t.parse().ok())
            .unwrap_or(0);
        if epoch < last {
            return false;
        }
        let new = format!("{text} {epoch}");
        if register
            .swap("witness", version, new.as_bytes())
            .unwrap()
            .is_some()
        {
            return true;
        }
    }
}

/// So many jobs elect at once, which takes no longer than one.
const JOBS: usize = 2;

/// Kills, cuts off and pauses, so many times each.
pub(crate) fn elections(service: &str, open: fn(&str, &str) -> Box<dyn Register>, rounds: usize) {
    thread::scope(|scope| {
        for job in 0..JOBS {
            scope.spawn(move || elections_of(job, service, open, rounds / JOBS));
        }
    });
}

fn elections_of(
    job: usize,
    service: &str,
    open: fn(&str, &str) -> Box<dyn Register>,
    rounds: usize,
) {
    let path = format!("test-{}-{job}", std::process::id());
    let start = |name: &str, relay: &Relay| {
        let register = open(&relay.address.to_string(), &path);
        Member::start_boxed(register, name, LEASE)
    };
    let mut parties: Vec<Party> = (0..3)
        .map(|i| {
            let (name, relay) = (format!("member {i}"), Relay::to(service));
            let member = Some(start(&name, &relay));
            Party {
                relay,
                member,
                name,
            }
        })
        .collect();
    let witness = open(service, &path);
    let mut takeovers = Vec::new();
    let (mut chief, mut epoch) = next_chief(&parties, 0);
    let mut epochs = BTreeSet::from([epoch]);
    for round in 0..rounds {
        assert!(write_fenced(&*witness, epoch));
        let begin = Instant::now();
        match round % 3 {
            // Killed: without a word.
            0 => parties[chief].member = None,
            // Cut off: it must give up by its own clock, before another takes over.
            1 => parties[chief].relay.cut(),
            _ => {
                // The service is gone for all, for longer than a lease, and comes back.
                parties.iter().for_each(|p| p.relay.cut());
                let office = parties[chief].member.as_ref().unwrap().office().clone();
                assert_eq!(office.wait_for(|epoch| epoch.is_none(), PATIENCE), None);
                assert!(chiefs(&parties).is_empty(), "elected without the service");
                parties.iter().for_each(|p| p.relay.heal());
            }
        }
        let last = (chief, epoch);
        (chief, epoch) = next_chief(&parties, epoch);
        takeovers.push(begin.elapsed());
        let former = parties[last.0]
            .member
            .as_ref()
            .and_then(|m| m.office().epoch());
        assert_ne!(
            former,
            Some(last.1),
            "still chief of epoch {} while there is {epoch}",
            last.1
        );
        assert!(epochs.insert(epoch), "epoch {epoch} twice");
        // The new chief writes; what the former still has under way is refused.
        assert!(write_fenced(&*witness, epoch));
        assert!(!write_fenced(&*witness, last.1));
        parties[last.0].relay.heal();
        if parties[last.0].member.is_none() {
            let Party { relay, name, .. } = &parties[last.0];
            let member = start(name, relay);
            parties[last.0].member = Some(member);
        }
    }
    takeovers.sort();
    // Past the test harness, which shows what is printed only of tests that fail.
    let _ = writeln!(
        std::io::stderr(),
        "{rounds} takeovers: median {:?}, longest {:?}",
        takeovers[rounds / 2],
        takeovers[rounds - 1]
    );
    // At the end one resigns, and another need not wait for the lease.
    parties[chief].member.as_mut().unwrap().resign();
    next_chief(&parties, epoch);
}

/// A register changes only from the version that was named.
pub(crate) fn swaps(register: &dyn Register) {
    let name = format!("swaps-{}", std::process::id());
    assert_eq!(register.read(&name).unwrap(), (Version::NONE, Vec::new()));
    let first = register
        .swap(&name, Version::NONE, b"one")
        .unwrap()
        .unwrap();
    assert_eq!(register.swap(&name, Version::NONE, b"two").unwrap(), None);
    assert_eq!(register.read(&name).unwrap(), (first, b"one".to_vec()));
    let second = register.swap(&name, first, b"two").unwrap().unwrap();
    assert!(second > first);
    assert_eq!(register.swap(&name, first, b"three").unwrap(), None);
    assert_eq!(register.read(&name).unwrap(), (second, b"two".to_vec()));
}
