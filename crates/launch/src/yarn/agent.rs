//! What runs in a container: connects to the ApplicationMaster, does what it asks (`frames`), and keeps tasks' output where YARN looks
//! for logs. There is always one connection that waits for a request; a request takes it over, and another one is made.
//!
//! YARN ends a container by killing its process group. Tasks have groups of their own, so a guard outside of the container's ends them.

use super::hello::{Peer, introduce};
use super::{LEASE, Order};
use crate::frames::{self, Frame, Request};
use crate::guard::{self, Guard};
use crate::ports;
use crate::supervise::{Surroundings, hold};
use downpour_yarn::Secret;
use rustix::process::Signal;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::{Ipv4Addr, Shutdown, TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two attempts to reach the ApplicationMaster.
const RETRY: Duration = Duration::from_millis(500);
/// How long it may take to accept.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long what is left of tasks may take to end.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Serves the ApplicationMaster at this address until it is gone. `order` is the job's file in the container, `guard` a program that calls
/// [`crate::stand`].
pub fn agent(
    master: &str,
    container: &str,
    order: &Path,
    logs: &Path,
    guard: &[String],
) -> Result<(), String> {
    let bytes =
        std::fs::read(order).map_err(|e| format!("cannot read {}: {e}", order.display()))?;
    let (order, secret) = Order::read(&bytes)?;
    let guard = Guard::start(guard).map_err(|e| format!("cannot start the guard: {e}"))?;
    let surroundings = Arc::new(Surroundings::new(logs, guard, LEASE));
    let mut heard = Instant::now();
    let mut last = String::new();
    while heard.elapsed() < LEASE {
        match wait_for_request(master, container, &secret, &mut heard) {
            Ok((stream, line)) => {
                let surroundings = surroundings.clone();
                std::thread::spawn(move || {
                    // The ApplicationMaster sees the end of the connection.
                    let _ = answer(stream, &line, &surroundings);
                });
            }
            Err(e) => {
                last = e.to_string();
                std::thread::sleep(RETRY);
            }
        }
    }
    end(&surroundings, order.spec.drain + LAST_WORDS);
    Err(format!("the ApplicationMaster at {master} is gone: {last}"))
}

/// Connects, and waits for a request.
fn wait_for_request(
    master: &str,
    container: &str,
    secret: &Secret,
    heard: &mut Instant,
) -> io::Result<(BufReader<TcpStream>, String)> {
    let address = master
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::other("the name has no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_WITHIN)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LEASE))?;
    stream.set_write_timeout(Some(LEASE))?;
    let mut from = BufReader::new(stream.try_clone()?);
    let peer = Peer::Agent(container.to_owned());
    introduce(secret, &peer, &mut from, &mut stream)?;
    *heard = Instant::now();
    // It may be long until something is asked.
    stream.set_read_timeout(None)?;
    let mut line = String::new();
    let read = (&mut from).take(frames::MAX_LINE).read_line(&mut line);
    *heard = Instant::now();
    match read? {
        0 => Err(io::Error::other("it closed the connection")),
        _ => {
            stream.set_read_timeout(Some(LEASE))?;
            Ok((from, line))
        }
    }
}

fn answer(from: BufReader<TcpStream>, line: &str, surroundings: &Surroundings) -> io::Result<()> {
    let mut to = from.get_ref().try_clone()?;
    frames::greet(&mut to)?;
    let answered = match serde_json::from_str(line) {
        Err(e) => refuse(&mut to, format!("the request is malformed: {e}")),
        Ok(Request::Check) => frames::write(
            &mut to,
            &Frame::Version(env!("CARGO_PKG_VERSION").to_owned()),
        ),
        Ok(Request::Ports(count)) => {
            let seed = u64::from(std::process::id()).wrapping_mul(0x9E37_79B9);
            let found = ports::free(Ipv4Addr::UNSPECIFIED, count as usize, seed)?;
            frames::write(&mut to, &Frame::Ports(found))
        }
        Ok(Request::Task(mut order)) => {
            // The ApplicationMaster's folders are in another container.
            let here = own_directory();
            if let Some(dir) = order.env.get_mut("DOWNPOUR_DIR")
                && !Path::new(dir).is_dir()
            {
                *dir = here.display().to_string();
            }
            order.cwd = here;
            hold(&order, from, &mut to, surroundings)
        }
        Ok(_) => refuse(&mut to, "a container does not do that".to_owned()),
    };
    let _ = to.shutdown(Shutdown::Both);
    answered
}

#[expect(
    clippy::disallowed_methods,
    reason = "a container's folder is where its process is started"
)]
fn own_directory() -> std::path::PathBuf {
    std::env::current_dir().unwrap_or_default()
}

fn refuse(to: &mut TcpStream, reason: String) -> io::Result<()> {
    frames::write(to, &Frame::Refused(reason))
}

/// Tasks end with their connections; what does not is killed.
fn end(surroundings: &Surroundings, patience: Duration) {
    let begin = Instant::now();
    while !surroundings.running().is_empty() && begin.elapsed() < patience {
        std::thread::sleep(RETRY / 5);
    }
    for pid in surroundings.running() {
        guard::signal(pid, Signal::KILL);
    }
}
